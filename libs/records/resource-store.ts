import { isDeepStrictEqual } from 'node:util';
import { sql, type Kysely } from 'kysely';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { transactOnce } from '#libs/event-log/idempotency.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { AnyResource } from './define-resource.ts';
import type { Checked, CheckContext, RecordName, ResourceStore, StoreDeps } from './kit.ts';
import { idOfName } from './find-by-name.ts';
import { listResources, listVersions } from '#libs/records/lists/list-resources.ts';
import { refuseMoreMemory } from '#libs/records/live/record-bytes.ts';
import { resourceModel, resourceVersionModel } from './resource-model.ts';
import { asJson, type ResourceEvent, type ResourceRow, type ResourceVersionRow } from './resource-row.ts';
import { viewOf } from './resource-view.ts';
import { refuseMoreRecords, refuseReplay } from './traits/creation.ts';
import { createSecretStore } from './traits/secrets.ts';
import { ownedBy } from './traits/shared.ts';
import { freeSlug, slugPlace } from './traits/slugs.ts';
import { readVersion, versionId, versionMember } from './traits/versions.ts';

/** Creates the store that lists, creates and changes the records of one kind. */
export function createResourceStore<Data extends object>(
  definition: AnyResource,
  deps: StoreDeps,
): ResourceStore<Data> {
  const { db, eventLog, snapshot } = deps;
  const { noun, versions, creation, removal } = definition;
  const secrets = createSecretStore(definition, deps.secrets);
  const model = resourceModel([definition]);
  const versionEvents = resourceVersionModel([definition]);

  const missing = (name: string): GatewayError => {
    const message = `There is no ${definition.names.one} '${name.slice(0, 100)}'.`;
    const param = definition.slugs ? 'slug' : 'id';
    return new GatewayError('not_found', `${noun}_not_found`, message, { param });
  };

  const find = async ({ workspaceId, name, isDeleted = false }: RecordName): Promise<ResourceRow<Data> | undefined> => {
    const id = idOfName(noun, name, ownedBy(definition, workspaceId), { isDeleted });
    const { rows } = await sql<ResourceRow<Data>>`select * from resource where id = ${id}`.execute(db);
    return rows[0];
  };

  const get: ResourceStore<Data>['get'] = async (name) => {
    const row = await find(name);
    if (!row) throw missing(name.name);
    return row;
  };

  /** Appends events and the row of the version that one of them adds. If the kind is cached, notifies every process. */
  const append = async (unit: UnitOfWork, id: string, events: readonly ResourceEvent[]): Promise<ResourceRow<Data>> => {
    const row = await unit.append(model, id, events);
    const number = events.map(({ data }) => data[versionMember(definition)]).find((value) => value !== undefined);
    if (versions && typeof number === 'number' && !events[0]?.type.endsWith('.version_published')) {
      const event = { ...(events[0] as ResourceEvent), streamId: id, recordedAt: row.updated_at };
      const { data, ...version } = versionEvents.evolve(undefined, event as never);
      const stream = { workspace_id: row.workspace_id, version: row.version, updated_at: row.updated_at };
      const values = { ...version, ...stream, id: versionId(id, number), data: JSON.stringify(data) };
      await unit.tx.insertInto('resource_version').values(values).execute();
    }
    if (definition.cached && events.length > 0) await announceAccessChange(unit);
    return row as ResourceRow<Data>;
  };

  const getContext = (
    unit: UnitOfWork,
    workspaceId: string,
    caller: Caller,
    row: ResourceRow<Data> | null,
  ): CheckContext<Data> => ({
    ...deps,
    unit,
    workspaceId,
    caller,
    row,
    readSecrets: async () => (row === null ? {} : await secrets.read(unit.tx, row)),
  });

  const check = async (input: Record<string, unknown>, context: CheckContext<Data>): Promise<Checked<Data>> => {
    const { open, given } = secrets.split(input);
    const checked: Checked<Data> = definition.check
      ? await definition.check(open, context)
      : { data: asJson(open) as Partial<Data> };
    if (Object.keys(given).length === 0) return checked;
    // Storing secrets again is how an operator replaces those that can no longer be decrypted.
    return { ...checked, secrets: { ...(await context.readSecrets()), ...given } };
  };

  const locksOf = (workspaceId: string): readonly string[] =>
    (typeof definition.locks === 'function' ? definition.locks(workspaceId) : definition.locks) ?? [];

  const changeWith = async (
    { workspaceId, name }: RecordName,
    metadata: EventMetadata,
    decide: Parameters<ResourceStore<Data>['change']>[2],
    moreStreams?: (row: ResourceRow<Data>) => Promise<readonly string[]>,
  ): Promise<ResourceRow<Data>> => {
    const found = await get({ workspaceId, name });
    const { id, workspace_id } = found;
    const streams = [...locksOf(workspace_id), id, ...((await moreStreams?.(found)) ?? [])];
    const changed = await eventLog.transact({ workspaceId: workspace_id, streams, metadata }, async (unit) => {
      const row = (await unit.load(model, id)) as ResourceRow<Data> | undefined;
      if (!row || row.deleted_at) throw missing(name);
      const changed = await append(unit, id, await decide(unit, row));
      if (!changed.deleted_at) refuseMoreMemory(definition, row, changed, deps);
      return changed;
    });
    if (definition.cached) await snapshot.catchUp();
    return changed;
  };

  const change: ResourceStore<Data>['change'] = (name, metadata, decide) => changeWith(name, metadata, decide);

  return {
    get,
    change,

    async create(call, workspaceId, { caller, metadata }, input) {
      const id = newId(definition.idPrefix);
      const owner = definition.owner === 'itself' ? id : workspaceId;
      const { place, lock } = slugPlace(definition, owner);
      const locks = [...locksOf(owner), ...(definition.slugs ? [lock] : [])];
      let shownOnce: Record<string, string> = {};
      const others = (creation && (await creation.also?.streams(input, deps, owner, {}))) || [];
      const command = { workspaceId: owner, streams: [...locks, id, ...others], metadata };
      const result = await transactOnce<object>(eventLog, call, command, async (unit) => {
        await refuseMoreRecords(unit, definition, owner, deps);
        const { slug: wanted, ...fields } = input;
        const checked = await check(fields, getContext(unit, owner, caller, null));
        const names = { slug: wanted as string | undefined, name: (fields['name'] as string | undefined) ?? '' };
        const slug = definition.slugs ? { slug: await freeSlug(unit, place, names) } : {};
        const number = versions ? { [versionMember(definition)]: 1 } : {};
        const numbers = { before: null, now: versions ? 1 : null };
        const sealed =
          checked.secrets || definition.secrets
            ? await secrets.replace(unit, { id, workspace_id: owner }, checked.secrets ?? {}, numbers)
            : {};
        const data = { ...slug, ...checked.data, ...sealed, ...number, created_by: caller.principal.id };
        const row = await append(unit, id, [{ type: `${noun}.created`, data }]);
        refuseMoreMemory(definition, null, row, deps);
        if (creation) await creation.also?.run(unit, input, { ...deps, caller, row, locked: others, query: {} });
        shownOnce = checked.shownOnce ?? {};
        return { status: 200, body: viewOf(definition, row, unit.now.getTime()) };
      });
      if (definition.cached) await snapshot.catchUp();
      if (result.replayed) refuseReplay(definition, result.body);
      return { record: result.body, shownOnce: result.replayed ? {} : shownOnce, replayed: result.replayed };
    },

    update: (name, { caller, metadata }, input) =>
      change(name, metadata, async (unit, row) => {
        const checked = await check(input, getContext(unit, row.workspace_id, caller, row));
        const last =
          versions?.publish === 'on_request' ? (await versionOf(unit.tx, row, row.last_version ?? 1)).data : {};
        const newest = { ...row.data, ...last } as Record<string, unknown>;
        const isNewer = ([member, value]: [string, unknown]): boolean => !isDeepStrictEqual(value, newest[member]);
        const data: Record<string, unknown> = Object.fromEntries(Object.entries(checked.data).filter(isNewer));
        const fields = versions?.fields ?? [];
        const isVersion = fields.some((field: string) => field in data) || (versions && checked.secrets) !== undefined;
        const before = row.last_version;
        const now = isVersion ? (before ?? 0) + 1 : before;
        if (checked.secrets) Object.assign(data, await secrets.replace(unit, row, checked.secrets, { before, now }));
        if (versions && isVersion) {
          const whole = Object.entries({ ...newest, ...checked.data }).filter(([field]) => fields.includes(field));
          Object.assign(data, Object.fromEntries(whole), { [versionMember(definition)]: now });
        }
        if (Object.keys(data).length === 0) return [];
        return [{ type: `${noun}.updated`, data: { ...data, updated_by: caller.principal.id } }];
      }),

    remove(name, { caller, metadata }, query = {}) {
      let locked: readonly string[] = [];
      const end = async (unit: UnitOfWork, row: ResourceRow<Data>): Promise<ResourceEvent[]> => {
        if (removal) {
          await removal.check?.(row, caller, unit);
          await removal.also?.run(unit, row, { ...deps, caller, row, locked, query });
        }
        await secrets.removeAll(unit, row);
        return [{ type: `${noun}.${(removal && removal.verb) || 'deleted'}`, data: {} }];
      };
      const lock = async (row: ResourceRow<Data>): Promise<readonly string[]> =>
        (locked = (removal && (await removal.also?.streams(row, deps, row.workspace_id, query))) || []);
      return changeWith(name, metadata, end, lock);
    },

    publish: (name, metadata, number) =>
      change(name, metadata, async (unit, row) => {
        const member = versionMember(definition);
        if ((row.data as Record<string, unknown>)[member] === number) return [];
        const { data } = await versionOf(unit.tx, row, number);
        return [{ type: `${noun}.version_published`, data: { ...data, [member]: number } }];
      }),

    list: (page) => listResources<Data>(db, definition, page),
    listVersions: (row, page) => listVersions<Data>(db, row, page),
    getVersion: (row, number) => versionOf(db, row, number),
  };

  async function versionOf(
    source: Kysely<Database>,
    row: ResourceRow<Data>,
    number: number,
  ): Promise<ResourceVersionRow<Data>> {
    const found = await readVersion<Data>(source, { workspaceId: row.workspace_id, id: row.id, number });
    if (found) return found;
    const message =
      `The ${definition.names.one} '${row.slug ?? row.id}' has no version ${number}. ` +
      `Its latest version is ${row.last_version}.`;
    throw new GatewayError('not_found', `${noun}_version_not_found`, message, { param: 'version' });
  }
}
