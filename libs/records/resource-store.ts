import { isDeepStrictEqual } from 'node:util';
import { sql, type Kysely } from 'kysely';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { SecretUnreadableError, type SecretMembers, type SecretOwner } from '#libs/secrets/secrets.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { transactOnce } from '#libs/event-log/idempotency.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { AnyResource } from './define-resource.ts';
import type { Checked, CheckContext, RecordName, ResourceStore, StoreDeps } from './kit.ts';
import { idOfName } from './find-by-name.ts';
import { listResources, listVersions, ownedBy } from '#libs/records/lists/list-resources.ts';
import { refuseMoreMemory, refuseMoreRecords } from './record-limits.ts';
import { resourceModel, resourceVersionModel, versionId, versionMember } from './resource-model.ts';
import { asJson, type ResourceEvent, type ResourceRow, type ResourceVersionRow } from './resource-row.ts';
import { freeSlug, slugPlace } from './resource-slug.ts';
import { viewOf } from './resource-view.ts';

/** What lists, creates and changes the records of one kind. */
export function createResourceStore<Data extends object>(
  definition: AnyResource,
  deps: StoreDeps,
): ResourceStore<Data> {
  const { db, eventLog, secrets, snapshot } = deps;
  const { noun, versioned } = definition;
  const model = resourceModel([definition]);
  const versionEvents = resourceVersionModel([definition]);

  const missing = (name: string): GatewayError => {
    const message = `There is no ${definition.names.one} '${name.slice(0, 100)}'.`;
    const param = definition.slug ? 'slug' : 'id';
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

  const ownerOf = (row: Pick<ResourceRow, 'id' | 'workspace_id'>, number: number | null): SecretOwner => ({
    workspaceId: row.workspace_id,
    ownerId: number === null ? row.id : versionId(row.id, number),
  });

  /** Appends events, and the row of the version that one of them brings; tells every process where the kind is cached. */
  const append = async (unit: UnitOfWork, id: string, events: readonly ResourceEvent[]): Promise<ResourceRow<Data>> => {
    const row = await unit.append(model, id, events);
    const number = events.map(({ data }) => data[versionMember(definition)]).find((value) => value !== undefined);
    if (versioned && typeof number === 'number' && !events[0]?.type.endsWith('.version_published')) {
      const event = { ...(events[0] as ResourceEvent), streamId: id, recordedAt: row.updated_at };
      const { data, ...version } = versionEvents.evolve(undefined, event as never);
      const stream = { workspace_id: row.workspace_id, version: row.version, updated_at: row.updated_at };
      const values = { ...version, ...stream, id: versionId(id, number), data: JSON.stringify(data) };
      await unit.tx.insertInto('resource_version').values(values).execute();
    }
    if (definition.cached && events.length > 0) await announceAccessChange(unit);
    return row as ResourceRow<Data>;
  };

  const contextOf = (
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
    async readSecrets() {
      if (row === null) return {};
      try {
        return (await secrets.readOwned(unit.tx, ownerOf(row, versioned ? row.last_version : null))) ?? {};
      } catch (error) {
        if (error instanceof SecretUnreadableError) return null;
        throw error;
      }
    },
  });

  const check = async (input: Record<string, unknown>, context: CheckContext<Data>): Promise<Checked<Data>> => {
    const { open, given } = splitSecrets(definition, input);
    const checked: Checked<Data> = definition.check
      ? await definition.check(open, context)
      : { data: asJson(open) as Partial<Data> };
    if (Object.keys(given).length === 0) return checked;
    // To store secrets again is how an operator replaces those that cannot be decrypted any more.
    return { ...checked, secrets: { ...(await context.readSecrets()), ...given } };
  };

  /** Encrypts the secrets of a new state in place of the old ones; what of it belongs into the event. */
  const storeSecrets = async (
    unit: UnitOfWork,
    row: Pick<ResourceRow, 'id' | 'workspace_id'>,
    members: SecretMembers,
    numbers: { before: number | null; now: number | null },
  ): Promise<{ secret_id?: string | null }> => {
    if (versioned?.publish !== 'on_request') await secrets.removeOwned(unit, ownerOf(row, numbers.before));
    const isEmpty = Object.keys(members).length === 0;
    const secretId = isEmpty ? null : await secrets.store(unit, ownerOf(row, numbers.now), members);
    return versioned ? {} : { secret_id: secretId };
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
      const locks = [...locksOf(owner), ...(definition.slug ? [lock] : [])];
      let shownOnce: Record<string, string> = {};
      const others = (await definition.onCreate?.streams(input, deps, owner, {})) ?? [];
      const command = { workspaceId: owner, streams: [...locks, id, ...others], metadata };
      const result = await transactOnce<object>(eventLog, call, command, async (unit) => {
        await refuseMoreRecords(unit, definition, owner, deps);
        const { slug: wanted, ...fields } = input;
        const checked = await check(fields, contextOf(unit, owner, caller, null));
        const names = { slug: wanted as string | undefined, name: (fields['name'] as string | undefined) ?? '' };
        const slug = definition.slug ? { slug: await freeSlug(unit, place, names) } : {};
        const number = versioned ? { [versionMember(definition)]: 1 } : {};
        const numbers = { before: null, now: versioned ? 1 : null };
        const sealed =
          checked.secrets || definition.secrets
            ? await storeSecrets(unit, { id, workspace_id: owner }, checked.secrets ?? {}, numbers)
            : {};
        const data = { ...slug, ...checked.data, ...sealed, ...number, created_by: caller.principal.id };
        const row = await append(unit, id, [{ type: `${noun}.created`, data }]);
        refuseMoreMemory(definition, null, row, deps);
        await definition.onCreate?.run(unit, input, { ...deps, caller, row, locked: others, query: {} });
        shownOnce = checked.shownOnce ?? {};
        return { status: 200, body: viewOf(definition, row, unit.now.getTime()) };
      });
      if (definition.cached) await snapshot.catchUp();
      if (result.replayed) definition.refuseReplay?.(result.body);
      return { record: result.body, shownOnce: result.replayed ? {} : shownOnce, replayed: result.replayed };
    },

    update: (name, { caller, metadata }, input) =>
      change(name, metadata, async (unit, row) => {
        const checked = await check(input, contextOf(unit, row.workspace_id, caller, row));
        const last =
          versioned?.publish === 'on_request' ? (await readVersion(unit.tx, row, row.last_version ?? 1)).data : {};
        const newest = { ...row.data, ...last } as Record<string, unknown>;
        const isNewer = ([member, value]: [string, unknown]): boolean => !isDeepStrictEqual(value, newest[member]);
        const data: Record<string, unknown> = Object.fromEntries(Object.entries(checked.data).filter(isNewer));
        const fields = versioned?.fields ?? [];
        const isVersion = fields.some((field: string) => field in data) || (versioned && checked.secrets) !== undefined;
        const before = row.last_version;
        const now = isVersion ? (before ?? 0) + 1 : before;
        if (checked.secrets) Object.assign(data, await storeSecrets(unit, row, checked.secrets, { before, now }));
        if (versioned && isVersion) {
          const whole = Object.entries({ ...newest, ...checked.data }).filter(([field]) => fields.includes(field));
          Object.assign(data, Object.fromEntries(whole), { [versionMember(definition)]: now });
        }
        if (Object.keys(data).length === 0) return [];
        return [{ type: `${noun}.updated`, data: { ...data, updated_by: caller.principal.id } }];
      }),

    remove(name, { caller, metadata }, query = {}) {
      let locked: readonly string[] = [];
      const end = async (unit: UnitOfWork, row: ResourceRow<Data>): Promise<ResourceEvent[]> => {
        await definition.checkRemoval?.(row, caller, unit);
        await definition.onRemove?.run(unit, row, { ...deps, caller, row, locked, query });
        const { last_version: last } = row;
        // Where a change does not publish, the versions before keep their secrets.
        const first = versioned?.publish === 'on_request' ? 1 : (last ?? 1);
        for (let number = first; number <= (last ?? 1); number += 1) {
          await secrets.removeOwned(unit, ownerOf(row, versioned ? number : null));
        }
        return [{ type: `${noun}.${definition.removal?.verb ?? 'deleted'}`, data: {} }];
      };
      const lock = async (row: ResourceRow<Data>): Promise<readonly string[]> =>
        (locked = (await definition.onRemove?.streams(row, deps, row.workspace_id, query)) ?? []);
      return changeWith(name, metadata, end, lock);
    },

    publish: (name, metadata, number) =>
      change(name, metadata, async (unit, row) => {
        const member = versionMember(definition);
        if ((row.data as Record<string, unknown>)[member] === number) return [];
        const { data } = await readVersion(unit.tx, row, number);
        return [{ type: `${noun}.version_published`, data: { ...data, [member]: number } }];
      }),

    list: (page) => listResources<Data>(db, definition, page),
    listVersions: (row, page) => listVersions<Data>(db, row, page),
    getVersion: (row, number) => readVersion(db, row, number),
  };

  async function readVersion(
    source: Kysely<Database>,
    row: ResourceRow<Data>,
    number: number,
  ): Promise<ResourceVersionRow<Data>> {
    const { rows } = await sql<ResourceVersionRow<Data>>`
      select * from resource_version
      where id = ${versionId(row.id, number)} and workspace_id = ${row.workspace_id}`.execute(source);
    if (rows[0]) return rows[0];
    const message =
      `The ${definition.names.one} '${row.slug ?? row.id}' has no version ${number}; ` +
      `its last one is ${row.last_version}.`;
    throw new GatewayError('not_found', `${noun}_version_not_found`, message, { param: 'version' });
  }
}

function splitSecrets(
  definition: AnyResource,
  input: Record<string, unknown>,
): { open: Record<string, unknown>; given: SecretMembers } {
  const open = { ...input };
  const given: Record<string, Secret> = {};
  for (const name of definition.secrets ?? []) {
    const value = open[name];
    delete open[name];
    if (typeof value === 'string') given[name] = new Secret(value);
  }
  return { open, given };
}
