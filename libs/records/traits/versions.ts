import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import { ResourceListQuery } from '#libs/contracts/lists.ts';
import { integer, text } from '#libs/contracts/scalars.ts';
import type { Database } from '#libs/database/schema.ts';
import { withInput, withTexts, type Route, type RouteText } from '#libs/http/route.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import {
  article,
  commonMembers,
  objectOf,
  operationName,
  timeMembers,
  type KindRoutes,
  type ResourceStore,
  type StoreDeps,
} from '../kit.ts';
import { pageOf, readPage } from '../lists/list-page.ts';
import type { ResourceRow, ResourceVersionRow } from '../resource-row.ts';
import { listSchemaOf, sendList, type Portkey } from './portkey.ts';

/** Every change to these fields creates a new, numbered version, which is kept permanently. */
export type Versions<Data, Deps> = Pick<Portkey, 'listsBare'> & {
  fields: readonly (keyof Data & string)[];
  /** `at_once`: the newest version is in use. `on_request`: a `version_published` event puts a version into use. */
  publish: 'at_once' | 'on_request';
  /** Returns the fields of a version that can be shown, and further members of its answer. Default: all fields. */
  shown?(data: Partial<Data>, head: ResourceRow<Data>, version: ResourceVersionRow<Data>): object;
  /** Documents the members that `shown` adds. */
  shownSchema?: z.ZodRawShape;
  /**
   * The public form of a record with one of its versions, which replaces the kit's; `list`: as one of its versions in a
   * list. A change is then answered with the version that it created.
   */
  view?(row: ResourceRow<Data>, version: ResourceVersionRow<Data>, place: 'list' | 'alone'): object;
  /** The number that a name such as `production` refers to, in addition to numbers and `latest`. */
  asNumber?(row: ResourceRow<Data>, name: string, deps: Deps): Promise<number | null>;
};

type Row = ResourceRow<Record<string, unknown>>;

type VersionedKind = {
  noun: string;
  names: { one: string; object?: string };
  slugs?: object;
  viewSchema: z.ZodObject;
  // The versions of any kind.
  // oxlint-disable-next-line typescript/no-explicit-any
  versions?: Versions<any, any>;
  related?(rows: readonly Row[], deps: never): Promise<(row: Row) => object>;
  texts?: { publish?: RouteText };
};

/** The member of events and of `data` that holds the number of a version: `config_version` for a config. */
export const versionMember = ({ noun }: { noun: string }): string => `${noun}_version`;

export const versionId = (id: string, number: number): string => `${id}@${number}`;

export const versionedOnRequest = ({ versions }: Pick<VersionedKind, 'versions'>): boolean =>
  versions?.publish === 'on_request';

/** The routes of a record's versions, and the helpers that the routes of the record need for them. */
export function versionRoutes(
  kind: VersionedKind,
  store: ResourceStore<Record<string, unknown>>,
  deps: StoreDeps,
  { name, onePath, params, place, read, write, found, schema, recordOf, viewsOf }: KindRoutes,
) {
  const { versions = { fields: [], publish: 'at_once' } } = kind;
  const { one } = kind.names;
  const operation = operationName(kind.noun);
  const missing = { ...found, [`${kind.noun}_version_not_found`]: 'the record has no such version' };
  const versionSchema = versions.view ? schema.loose() : versionSchemaOf(kind, versions);

  const viewOf = async (row: Row, number: number): Promise<object> =>
    (await versionViews(kind, deps, row, [await store.getVersion(row, number)], 'alone'))[0] as object;

  /** Accepts `latest`, a number, or another name that the kind defines for versions. Throws not_found. */
  const asNumber = async (row: Row, wanted: string): Promise<number> => {
    if (wanted === 'latest') return row.last_version ?? 1;
    if (/^\d{1,9}$/.test(wanted)) return Number(wanted);
    const number = await versions.asNumber?.(row, wanted, deps);
    if (number !== null && number !== undefined) return number;
    throw noSuchVersion(kind, row, wanted, name);
  };

  const list: Route = {
    method: 'GET',
    path: `${onePath}/versions`,
    operationId: `list${operation}Versions`,
    summary: `List the versions of ${article(one)}, newest first`,
    ...read,
    responses: { 200: { description: 'A page of versions.', schema: listSchemaOf(versions, versionSchema) } },
    ...withInput({ params, query: ResourceListQuery.extend(place.shape) }, async ({ query }, request, response) => {
      const row = await store.get(await recordOf(request, query));
      const page = { ...pageOf(query, versions.listsBare), workspaceId: row.workspace_id };
      const listed = await readPage(deps, request, response, (bytesMax) =>
        store.listVersions(row, { ...page, ...bytesMax }),
      );
      sendList(versions, response, await versionViews(kind, deps, row, listed.rows, 'list'), { ...page, ...listed });
    }),
  };

  const retrieve: Route = {
    method: 'GET',
    path: `${onePath}/versions/:version`,
    operationId: `retrieve${operation}Version`,
    summary: `Retrieve a version of ${article(one)}`,
    ...read,
    responses: { 200: { description: 'The version.', schema: versionSchema } },
    ...withInput({ params: versionParams(name), query: place }, async ({ params, query }, request, response) => {
      const row = await store.get(await recordOf(request, query));
      response.json(await viewOf(row, versionNumber(kind, row, params.version)));
    }),
  };

  const publish: Route = {
    method: 'PUT',
    path: `${onePath}/makeDefault`,
    operationId: `publish${operation}`,
    summary: `Publish a version of ${article(one)}`,
    ...write,
    responses: { 200: { description: `The ${one} with this version.`, schema } },
    ...withInput(
      { params, query: place, body: z.strictObject({ version: integer({ min: 1 }) }) },
      async ({ query, body }, request, response) => {
        const row = await store.publish(await recordOf(request, query), toEventMetadata(request), body.version);
        response.json((await viewsOf([row]))[0]);
      },
    ),
  };

  const bare = versions.listsBare ? ', as a bare array' : '';
  const routes = [
    withTexts(list, {
      description: `Every version of the record, newest first${bare}. Versions never change.`,
      errors: found,
    }),
    withTexts(retrieve, {
      description: 'Takes the number of the version, starting at 1. Versions never change.',
      errors: missing,
    }),
    ...(versionedOnRequest(kind) ? [withTexts(publish, kind.texts?.publish, { errors: missing })] : []),
  ];
  return { routes: kind.versions ? routes : [], viewOf, asNumber };
}

/** Path parameters of a version, whose record is named by `name`. */
export const versionParams = (name: 'slug' | 'id') =>
  z.object({
    [name]: z.string(),
    version: text({ min: 1, max: 1_000 }).describe('its number, or its ID, which ends with `@` and the number'),
  }) as unknown as z.ZodObject<{ version: z.ZodString }>;

/** The public forms of versions of one record, with the data that is related to them. */
async function versionViews(
  kind: VersionedKind,
  deps: StoreDeps,
  row: Row,
  shown: readonly ResourceVersionRow[],
  place: 'list' | 'alone',
): Promise<{ id: string }[]> {
  // The data related to a version is looked up with the record, as if this version were in use.
  const rows = shown.map(({ number, data }) => ({
    ...row,
    data: { ...row.data, ...data, [versionMember(kind)]: number },
  }));
  const related = await kind.related?.(rows, deps as never);
  return shown.map((version, index) => {
    const view = versionViewOf(kind, row, version, place);
    return { ...view, ...related?.(rows[index] as Row) } as { id: string };
  });
}

/** The public form of a version of a record, in a list (`list`) or alone. */
export function versionViewOf(
  kind: Pick<VersionedKind, 'noun' | 'names' | 'slugs' | 'versions' | 'viewSchema'>,
  head: ResourceRow<object>,
  row: ResourceVersionRow,
  place: 'list' | 'alone',
): object {
  if (kind.versions?.view)
    return { ...commonMembers(kind, head), ...timeMembers(kind, head), ...kind.versions.view(head, row, place) };
  return {
    id: row.id,
    object: `${objectOf(kind)}.version`,
    [`${kind.noun}_id`]: row.resource_id,
    ...(kind.slugs ? { slug: head.slug } : {}),
    version: row.number,
    ...(kind.versions?.shown ? kind.versions.shown(row.data, head, row) : row.data),
    created_at: row.created_at.toISOString(),
  };
}

/**
 * The schema of `versionViewOf`. Stored fields can differ in form from the request's fields, so it leaves their types open.
 */
const versionSchemaOf = (
  kind: VersionedKind,
  { fields, shownSchema }: NonNullable<VersionedKind['versions']>,
): z.ZodObject =>
  z.object({
    id: z.string(),
    object: z.literal(`${objectOf(kind)}.version`),
    [`${kind.noun}_id`]: z.string(),
    ...(kind.slugs ? { slug: z.string() } : {}),
    version: z.int(),
    ...Object.fromEntries(fields.map((field) => [field, z.unknown()])),
    ...shownSchema,
    created_at: z.iso.datetime(),
  });

/**
 * The number of a version that a path names by number or by ID. Throws not_found for the ID of another record's version, and
 * invalid_request for anything else.
 */
export function versionNumber(
  kind: Pick<VersionedKind, 'noun' | 'names'>,
  row: Pick<ResourceRow, 'id' | 'slug'>,
  wanted: string,
): number {
  const [, record, digits] = /^(?:(.+)@)?(\d+)$/.exec(wanted) ?? [];
  const number = Number(digits);
  if (!(number >= 1)) {
    const message = "Invalid 'version': expected the number of a version, at least 1, or its ID.";
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'version' });
  }
  // No version has a number this large, and only safe integers can be looked up.
  if (record === undefined || record === row.id || record === row.slug) return Math.min(number, 2 ** 53 - 1);
  throw noSuchVersion(kind, row, wanted);
}

function noSuchVersion(
  { noun, names: { one } }: Pick<VersionedKind, 'noun' | 'names'>,
  row: Pick<ResourceRow, 'id' | 'slug'>,
  wanted: string,
  param = 'version',
): GatewayError {
  const message = `The ${one} '${row.slug ?? row.id}' has no version '${wanted.slice(0, 100)}'.`;
  return new GatewayError('not_found', `${noun}_version_not_found`, message, { param });
}

/** Returns a version of a record, or undefined if it does not exist. */
export async function readVersion<Data = Record<string, unknown>>(
  db: Kysely<Database>,
  { workspaceId, id, number }: { workspaceId: string; id: string; number: number },
): Promise<ResourceVersionRow<Data> | undefined> {
  const { rows } = await sql<ResourceVersionRow<Data>>`
    select * from resource_version
    where id = ${versionId(id, number)} and workspace_id = ${workspaceId}`.execute(db);
  return rows[0];
}

/** Like `readVersion`. Throws not_found for a version that does not exist. */
export async function requireVersion<Data>(
  { noun, names: { one } }: Pick<VersionedKind, 'noun' | 'names'>,
  db: Kysely<Database>,
  row: ResourceRow<Data>,
  number: number,
): Promise<ResourceVersionRow<Data>> {
  const found = await readVersion<Data>(db, { workspaceId: row.workspace_id, id: row.id, number });
  if (found) return found;
  const message = `The ${one} '${row.slug ?? row.id}' has no version ${number}. Its latest version is ${row.last_version}.`;
  throw new GatewayError('not_found', `${noun}_version_not_found`, message, { param: 'version' });
}
