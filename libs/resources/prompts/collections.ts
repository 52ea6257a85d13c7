import { sql, type Kysely } from 'kysely';
import { CollectionObject, collectionFields } from '#libs/contracts/configs/prompts.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import { z } from 'zod';
import { promptsLimit } from './prompt-limits.ts';
import { defineKind, type CheckContext, type KindDeps } from '#libs/resources/define-kind.ts';
import type { ListFilter } from '#libs/records/define-resource.ts';
import { idOfName } from '#libs/records/find-by-name.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { slugLock } from '#libs/records/traits/slugs.ts';

type CollectionData = { name: string; parent_collection_id: string | null; is_default?: true };

/** Held while a record is put into a collection and while a collection is removed. */
export const collectionLock = (workspaceId: string): string => `collections:${workspaceId}`;

const depthMax = 5;
const idPrefix = 'col_';
const metadata: EventMetadata = { actor: { type: 'system', id: 'collections' } };

/**
 * Folders for prompts and partials. Each workspace has a default collection from the start. Only empty collections can be
 * deleted.
 */
export const collectionKind = defineKind<typeof collectionFields, CollectionData>({
  noun: 'collection',
  idPrefix,
  area: 'collections',
  texts: {
    create: {
      description: 'A folder of prompts and partials. You can nest folders up to five levels deep.',
      example: { name: 'Support' },
      errors: { collection_not_found: 'the parent does not exist' },
    },
    update: { description: 'Changes the name. A collection cannot be moved.', example: { name: 'Customers' } },
    delete: {
      description: 'Only empty collections can be deleted, and never the default one.',
      errors: {
        default_collection: 'this is the default collection',
        collection_not_empty: 'the collection is not empty',
      },
    },
  },
  path: '/v1/collections',
  names: { one: 'collection', many: 'collections', tag: 'Collections', about: 'Folders of prompts and partials.' },
  fields: collectionFields,
  applied: { refersTo: { collection: 'parent_collection_id' } },
  changes: { immutable: ['parent_collection_id'] },
  slugs: {},
  creation: { limit: promptsLimit },
  filters: { search: { schema: z.string().max(200), field: 'name', match: 'contains' } },
  locks: (workspaceId) => [collectionLock(workspaceId)],
  prepare: keepDefaultCollection,

  async check({ name, parent_collection_id: parent }, context) {
    const renamed = name === undefined ? {} : { name };
    if (context.row !== null) return { data: renamed };
    const path = parent ? await pathTo(context, parent, 'parent_collection_id') : [];
    if (path.length >= depthMax) {
      const message = `Invalid 'parent_collection_id': collections can be nested at most ${depthMax} levels deep.`;
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'parent_collection_id' });
    }
    return { data: { ...renamed, parent_collection_id: path[0] ?? null } };
  },

  removal: {
    async check({ id, data }, _caller, { tx }) {
      if (data.is_default)
        throw conflict('default_collection', 'The default collection of a workspace cannot be deleted.');
      const { rows } = await sql<{ kind: string }>`
        select kind from resource where deleted_at is null and (
          (kind in ('prompt', 'prompt_partial') and data ->> 'collection_id' = ${id})
          or (kind = 'collection' and data ->> 'parent_collection_id' = ${id})) limit 1`.execute(tx);
      if (rows.length === 0) return;
      const message = 'This collection is not empty. Move or delete its prompts, partials and collections first.';
      throw conflict('collection_not_empty', message);
    },
  },

  view: (row) => ({
    name: row.data.name,
    workspace_id: row.workspace_id,
    parent_collection_id: row.data.parent_collection_id,
    is_default: row.data.is_default === true,
    status: row.deleted_at ? 'archived' : 'active',
  }),
  viewSchema: CollectionObject,

  async related(rows, { db }) {
    const children = await childrenOf(
      db,
      rows.map(({ id }) => id),
    );
    const details = await detailsOf(
      db,
      [...rows, ...children].map(({ id }) => id),
    );
    return ({ id }) => ({
      collection_details: details(id),
      child_collections: children
        .filter(({ data }) => data.parent_collection_id === id)
        .map((child) => ({
          id: child.id,
          name: child.data.name,
          last_updated_at: child.updated_at.toISOString(),
          collection_details: details(child.id),
        })),
    });
  },
});

const model = resourceModel([collectionKind]);

/** Creates the default collection for a workspace that does not have one yet. */
export async function keepDefaultCollection(workspaceId: string, { db, eventLog }: KindDeps): Promise<void> {
  if ((await defaultCollection(db, workspaceId)) !== null) return;
  const id = newId(idPrefix);
  const streams = [slugLock(workspaceId, 'collection'), collectionLock(workspaceId), id];
  await eventLog.transact({ workspaceId, streams, metadata }, async (unit) => {
    if ((await defaultCollection(unit.tx, workspaceId)) !== null) return;
    const data = { slug: 'default', name: 'Default', parent_collection_id: null, is_default: true };
    await unit.append(model, id, [{ type: 'collection.created', data }]);
  });
}

async function defaultCollection(db: Kysely<Database>, workspaceId: string): Promise<string | null> {
  const { rows } = await sql<{ id: string }>`
    select id from resource where kind = 'collection' and workspace_id = ${workspaceId} and deleted_at is null
      and data ->> 'is_default' = 'true'`.execute(db);
  return rows[0]?.id ?? null;
}

/**
 * The ID of the collection for a prompt or partial, by ID or slug; without a name, the default collection. The caller must
 * hold `collectionLock`. Throws invalid_request.
 */
export async function collectionOf(
  context: Pick<CheckContext<never>, 'unit' | 'workspaceId'>,
  name: string | undefined,
): Promise<string> {
  if (name !== undefined) return (await pathTo(context, name, 'collection_id'))[0] as string;
  const id = await defaultCollection(context.unit.tx, context.workspaceId);
  if (id === null) throw new Error(`the workspace ${context.workspaceId} has no default collection`);
  return id;
}

/** The IDs of a collection and of those that contain it, innermost first. Throws invalid_request. */
async function pathTo(
  { unit, workspaceId }: Pick<CheckContext<never>, 'unit' | 'workspaceId'>,
  name: string,
  param: string,
): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    with recursive path (id, parent, depth) as (
      select id, data ->> 'parent_collection_id', 1 from resource
      where id = ${idOfName('collection', name, sql`workspace_id = ${workspaceId}`)}
      union all
      select outer_one.id, outer_one.data ->> 'parent_collection_id', depth + 1
      from path join resource as outer_one on outer_one.id = path.parent where depth < ${depthMax + 1})
    select id from path order by depth`.execute(unit.tx);
  if (rows.length > 0) return rows.map(({ id }) => id);
  const message = `Invalid '${param}': there is no collection '${name.slice(0, 100)}' in this workspace.`;
  throw new GatewayError('invalid_request', 'collection_not_found', message, { param });
}

/** Filters a list by the ID or slug of a collection. */
export const collectionFilter: ListFilter = {
  schema: z.string().max(200),
  where: (name: string) =>
    sql`data ->> 'collection_id' = ${idOfName('collection', name, sql`named.workspace_id = resource.workspace_id`)}`,
};

async function childrenOf(db: Kysely<Database>, ids: readonly string[]): Promise<ResourceRow<CollectionData>[]> {
  const { rows } = await sql<ResourceRow<CollectionData>>`
    select * from resource where kind = 'collection' and deleted_at is null
      and data ->> 'parent_collection_id' = any(${ids}::text[]) order by created_at desc, id desc`.execute(db);
  return rows;
}

async function detailsOf(db: Kysely<Database>, ids: readonly string[]): Promise<(id: string) => object> {
  const { rows } = await sql<{ id: string; kind: string; count: number; last: Date }>`
    select coalesce(data ->> 'collection_id', data ->> 'parent_collection_id') as id, kind, count(*)::int as count,
      max(updated_at) as last
    from resource where kind in ('prompt', 'collection') and deleted_at is null
      and coalesce(data ->> 'collection_id', data ->> 'parent_collection_id') = any(${ids}::text[])
    group by 1, 2`.execute(db);
  const of = (id: string, kind: string) => rows.find((row) => row.id === id && row.kind === kind);
  return (id) => ({
    child_collections_count: of(id, 'collection')?.count ?? 0,
    prompts_count: of(id, 'prompt')?.count ?? 0,
    child_collections_last_updated_at: of(id, 'collection')?.last.toISOString() ?? null,
    prompts_last_updated_at: of(id, 'prompt')?.last.toISOString() ?? null,
  });
}

const conflict = (code: string, message: string): GatewayError => new GatewayError('conflict', code, message);
