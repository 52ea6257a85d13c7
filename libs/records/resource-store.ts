import { sql } from 'kysely';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { transactOnce } from '#libs/event-log/idempotency.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { AnyResource } from './define-resource.ts';
import type { RecordName, ResourceStore, StoreDeps } from './kit.ts';
import { idOfName } from './find-by-name.ts';
import { listResources, listVersions } from '#libs/records/lists/list-resources.ts';
import { refuseMoreMemory } from '#libs/records/live/record-bytes.ts';
import { createResourceEvents } from './resource-events.ts';
import { resourceModel, resourceVersionModel } from './resource-model.ts';
import type { ResourceEvent, ResourceRow } from './resource-row.ts';
import { viewOf } from './resource-view.ts';
import { refuseMoreRecords, refuseReplay } from './traits/creation.ts';
import { ownedBy } from './traits/shared.ts';
import { slugPlace } from './traits/slugs.ts';
import { requireVersion, versionId, versionMember } from './traits/versions.ts';

/** Creates the store that lists, creates and changes the records of one kind. */
export function createResourceStore<Data extends object>(
  definition: AnyResource,
  deps: StoreDeps,
): ResourceStore<Data> {
  const { db, eventLog, snapshot } = deps;
  const { noun, creation, removal } = definition;
  const model = resourceModel([definition]);
  const events = createResourceEvents<Data>(definition, deps);
  const append = createAppend<Data>(definition, model);

  const get: ResourceStore<Data>['get'] = async ({ workspaceId, name, isDeleted = false }) => {
    const id = idOfName(noun, name, ownedBy(definition, workspaceId), { isDeleted });
    const { rows } = await sql<ResourceRow<Data>>`select * from resource where id = ${id}`.execute(db);
    if (rows[0] === undefined) throw noSuchRecord(definition, name);
    return rows[0];
  };

  const locksOf = (workspaceId: string): readonly string[] =>
    (typeof definition.locks === 'function' ? definition.locks(workspaceId) : definition.locks) ?? [];

  const change = async (
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
      if (!row || row.deleted_at) throw noSuchRecord(definition, name);
      const changed = await append(unit, id, await decide(unit, row));
      if (!changed.deleted_at) refuseMoreMemory(definition, row, changed, deps);
      return changed;
    });
    if (definition.cached) await snapshot.catchUp();
    return changed;
  };

  return {
    get,
    change,

    async create(call, workspaceId, { caller, metadata }, input) {
      const id = newId(definition.idPrefix);
      const owner = definition.owner === 'itself' ? id : workspaceId;
      const locks = [...locksOf(owner), ...(definition.slugs ? [slugPlace(definition, owner).lock] : [])];
      let shownOnce: Record<string, string> = {};
      const others = (creation && (await creation.also?.streams(input, deps, owner, {}))) || [];
      const command = { workspaceId: owner, streams: [...locks, id, ...others], metadata };
      const result = await transactOnce<object>(eventLog, call, command, async (unit) => {
        await refuseMoreRecords(unit, definition, owner, deps);
        const created = await events.creation(unit, { id, owner, caller }, input);
        const row = await append(unit, id, created.events);
        refuseMoreMemory(definition, null, row, deps);
        if (creation) await creation.also?.run(unit, input, { ...deps, caller, row, locked: others, query: {} });
        shownOnce = created.shownOnce;
        return { status: 200, body: viewOf(definition, row, unit.now.getTime()) };
      });
      if (definition.cached) await snapshot.catchUp();
      if (result.replayed) refuseReplay(definition, result.body);
      return { record: result.body, shownOnce: result.replayed ? {} : shownOnce, replayed: result.replayed };
    },

    update: (name, { caller, metadata }, input) =>
      change(name, metadata, (unit, row) => events.update(unit, row, caller, input)),

    remove(name, { caller, metadata }, query = {}) {
      let locked: readonly string[] = [];
      const end = async (unit: UnitOfWork, row: ResourceRow<Data>): Promise<ResourceEvent[]> => {
        if (removal) {
          await removal.check?.(row, caller, unit);
          await removal.also?.run(unit, row, { ...deps, caller, row, locked, query });
        }
        return await events.removal(unit, row);
      };
      const lock = async (row: ResourceRow<Data>): Promise<readonly string[]> =>
        (locked = (removal && (await removal.also?.streams(row, deps, row.workspace_id, query))) || []);
      return change(name, metadata, end, lock);
    },

    publish: (name, metadata, number) => change(name, metadata, (unit, row) => events.publication(unit, row, number)),

    list: (page) => listResources<Data>(db, definition, page),
    listVersions: (row, page) => listVersions<Data>(db, row, page),
    getVersion: (row, number) => requireVersion<Data>(definition, db, row, number),
  };
}

/**
 * Returns the function that appends events and the row of the version that one of them adds. If the kind is cached, it
 * notifies every process.
 */
function createAppend<Data>(definition: AnyResource, model: ReturnType<typeof resourceModel>) {
  const versionEvents = resourceVersionModel([definition]);
  return async (unit: UnitOfWork, id: string, events: readonly ResourceEvent[]): Promise<ResourceRow<Data>> => {
    const row = await unit.append(model, id, events);
    const number = events.map(({ data }) => data[versionMember(definition)]).find((value) => value !== undefined);
    if (definition.versions && typeof number === 'number' && !events[0]?.type.endsWith('.version_published')) {
      const event = { ...(events[0] as ResourceEvent), streamId: id, recordedAt: row.updated_at };
      const { data, ...version } = versionEvents.evolve(undefined, event as never);
      const { workspace_id, version: streamVersion, updated_at, last_event_id } = row;
      const stream = { workspace_id, version: streamVersion, updated_at, last_event_id };
      const values = { ...version, ...stream, id: versionId(id, number), data: JSON.stringify(data) };
      await unit.tx.insertInto('resource_version').values(values).execute();
    }
    if (definition.cached && events.length > 0) await announceAccessChange(unit);
    return row as ResourceRow<Data>;
  };
}

function noSuchRecord({ noun, names, slugs }: AnyResource, name: string): GatewayError {
  const message = `There is no ${names.one} '${name.slice(0, 100)}'.`;
  return new GatewayError('not_found', `${noun}_not_found`, message, { param: slugs ? 'slug' : 'id' });
}
