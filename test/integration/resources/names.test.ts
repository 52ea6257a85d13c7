import fc from 'fast-check';
import { expect, test } from 'vitest';
import { organisationId } from '#libs/http/caller.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { AnyResource } from '#libs/records/define-resource.ts';
import { findLive } from '#libs/records/find-by-name.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { createResourceStore } from '#libs/records/resource-store.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { allRights, callOf, createProcess, metadata } from '../access/access-rig.ts';

const database = useTestDatabase();
const named = resourceKinds.filter(({ slugs }) => slugs);

type Record = { id: string; owner: string; slug: string };

/** What every kind needs in its rows, so that records that are shared are seen by all workspaces. */
const data = {
  name: 'a record',
  provider: 'openai',
  config: {},
  config_version: 1,
  settings: {},
  secret_last_four: '',
  allow_all_workspaces: true,
  global_workspace_access: { enabled: true },
};

async function store(kind: AnyResource, records: readonly Record[]): Promise<void> {
  const model = resourceModel([kind]);
  const { eventLog } = createProcess(database);
  for (const { id, owner, slug } of records) {
    await eventLog.transact({ workspaceId: owner, streams: [id], metadata }, (unit) =>
      unit.append(model, id, [{ type: `${kind.noun}.created`, data: { ...data, slug } }]),
    );
  }
}

test.each(named)(
  'a $noun is found by its ID before any record that has the ID as its slug, in whatever order they are stored',
  async (kind) => {
    const plan = fc.record({
      owners: fc.array(fc.boolean(), { minLength: 2, maxLength: 5 }),
      slugs: fc.array(fc.nat(9), { minLength: 5, maxLength: 5 }),
      reversed: fc.boolean(),
    });
    const run = async ({ owners, slugs, reversed }: { owners: boolean[]; slugs: number[]; reversed: boolean }) => {
      const workspaceId = newId('ws_');
      const suffix = workspaceId.slice(-8);
      const taken = new Set<string>();
      const ids = owners.map(() => newId(kind.idPrefix));
      const isItself = kind.owner === 'itself';
      const records = owners.map((isShared, index): Record => {
        const id = ids[index] ?? '';
        const owner = isItself ? id : isShared && kind.shared ? organisationId : workspaceId;
        // The ID of one of the records, or a slug that a record of another owner may have too.
        const wanted = ids[slugs[index] ?? 0] ?? `${isItself ? index : ''}plain-${slugs[index]}-${suffix}`;
        const isFree = wanted !== id && !taken.has(`${isItself ? '' : owner} ${wanted}`);
        const slug = isFree ? wanted : `other-${index}-${suffix}`;
        taken.add(`${isItself ? '' : owner} ${slug}`);
        return { id, owner, slug };
      });
      await store(kind, reversed ? records.toReversed() : records);

      const owned = (owner: string) => records.filter((record) => record.owner === owner);
      const seen = isItself ? records : [...owned(workspaceId), ...owned(organisationId)];
      const live = {
        records: new Map(records.map(({ id, owner }) => [id, { workspaceId: owner, entry: id } as never])),
        bySlug: new Map(
          [...Map.groupBy(records, ({ owner }) => owner)].map(([owner, all]) => [
            owner,
            new Map(all.map(({ id, slug }) => [slug, id])),
          ]),
        ),
        unreadable: new Map(),
      };
      const resources = createResourceStore(kind, createProcess(database).resources);
      for (const name of new Set(records.flatMap(({ id, slug }) => [id, slug]))) {
        const expected = (seen.find(({ id }) => id === name) ?? seen.find(({ slug }) => slug === name))?.id;
        const found = await resources.get({ workspaceId: isItself ? null : workspaceId, name });
        expect(found.id).toBe(expected);
        const everyOwner = isItself ? ids : [workspaceId, organisationId];
        expect(findLive<string>(live, everyOwner, name)).toBe(expected);
      }
    };
    await fc.assert(fc.asyncProperty(plan, run), { numRuns: 10 });
  },
);

test.each(named.filter(({ noun }) => noun === 'config' || noun === 'collection'))(
  'a $noun gets no slug that looks like an ID, neither a given one nor one derived from its name',
  async (kind) => {
    const workspaceId = newId('ws_');
    const records = createResourceStore(kind, createProcess(database).resources);
    const caller = { workspaceId, keyId: 'key_test', ...allRights };
    const id = newId(kind.idPrefix);
    const input = kind.noun === 'config' ? { config: { virtual_key: 'x' } } : {};
    const given = records.create(
      callOf(workspaceId),
      workspaceId,
      { caller, metadata },
      { ...input, name: 'x', slug: id },
    );
    await expect(given).rejects.toMatchObject({ kind: 'invalid_request', param: 'slug' });
    const { record } = await records.create(
      callOf(workspaceId),
      workspaceId,
      { caller, metadata },
      { ...input, name: id },
    );
    expect(record).toMatchObject({ slug: `${id}-2` });
  },
);
