import { z } from 'zod';
import { ResourceListQuery } from '#libs/contracts/lists.ts';
import { integer } from '#libs/contracts/scalars.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AnyResource } from './define-resource.ts';
import type { ResourceStore, RouteKit, StoreDeps } from './kit.ts';
import { listSchemaOf, pageOf, readPage, sendList } from '#libs/records/lists/list-page.ts';
import { versionMember } from './resource-model.ts';
import type { ResourceRow, ResourceVersionRow } from './resource-row.ts';
import { versionParams } from './resource-schemas.ts';
import { withTexts } from './resource-texts.ts';
import { article, versionSchemaOf, versionViewOf, viewSchemaOf } from './resource-view.ts';

type Row = ResourceRow<Record<string, unknown>>;

/** The routes of a record's versions, and what the routes of the record need of them. */
export function versionRoutes(
  kind: AnyResource,
  store: ResourceStore<Record<string, unknown>>,
  deps: StoreDeps,
  { recordOf, viewsOf }: Pick<RouteKit, 'recordOf' | 'viewsOf'>,
) {
  const { one, tag } = kind.names;
  const name = kind.slug ? 'slug' : 'id';
  const onePath = `${kind.path}/:${name}`;
  const operation = kind.noun.replaceAll(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const scope = `${kind.area}.read` as const;
  const params = z.object({ [name]: z.string() });
  const place = z.object({ workspace_id: z.string().max(200).optional() });
  const schema = versionSchemaOf(kind);

  const viewOf = async (row: Row, number: number, where: 'list' | 'alone'): Promise<object> =>
    (await versionViews(row, [await store.getVersion(row, number)], where))[0] as object;

  const versionViews = async (
    row: Row,
    versions: readonly ResourceVersionRow[],
    where: 'list' | 'alone',
  ): Promise<{ id: string }[]> => {
    // What is related to a version is found by the record as it would be with this version in use.
    const rows = versions.map(({ number, data }) => ({
      ...row,
      data: { ...row.data, ...data, [versionMember(kind)]: number },
    }));
    const related = await kind.related?.(rows, deps);
    return versions.map((version, index) => {
      const more = related?.(rows[index] as Row);
      return { ...versionViewOf(kind, row, version, where), ...more } as { id: string };
    });
  };

  /** `latest`, a number, or what else the kind names versions by. Throws not_found. */
  const numberOf = async (row: Row, wanted: string): Promise<number> => {
    if (wanted === 'latest') return row.last_version ?? 1;
    if (/^\d{1,9}$/.test(wanted)) return Number(wanted);
    const number = await kind.versioned?.numberOf?.(row, wanted, deps);
    if (number !== null && number !== undefined) return number;
    const message = `The ${one} '${row.slug ?? row.id}' has no version '${wanted.slice(0, 100)}'.`;
    throw new GatewayError('not_found', `${kind.noun}_version_not_found`, message, { param: name });
  };

  const list: Route = {
    method: 'GET',
    path: `${onePath}/versions`,
    operationId: `list${operation}Versions`,
    summary: `List the versions of ${article(one)}, newest first`,
    tag,
    scope,
    responses: { 200: { description: 'A page of versions.', schema: listSchemaOf(kind.versioned ?? {}, schema) } },
    ...withInput({ params, query: ResourceListQuery.extend(place.shape) }, async ({ query }, request, response) => {
      const row = await store.get(await recordOf(request, query));
      const page = { ...pageOf(query, kind.versioned?.listsBare), workspaceId: row.workspace_id };
      const found = await readPage(deps, request, response, (bytesMax) =>
        store.listVersions(row, { ...page, ...bytesMax }),
      );
      const views = await versionViews(row, found.rows, 'list');
      sendList(kind.versioned ?? {}, response, views, { ...page, ...found });
    }),
  };

  const retrieve: Route = {
    method: 'GET',
    path: `${onePath}/versions/:version`,
    operationId: `retrieve${operation}Version`,
    summary: `Retrieve a version of ${article(one)}`,
    tag,
    scope,
    responses: { 200: { description: 'The version.', schema } },
    ...withInput({ params: versionParams(name), query: place }, async ({ params, query }, request, response) => {
      const row = await store.get(await recordOf(request, query));
      response.json(await viewOf(row, versionNumber(kind, row, params.version), 'alone'));
    }),
  };

  const publish: Route = {
    method: 'PUT',
    path: `${onePath}/makeDefault`,
    operationId: `publish${operation}`,
    summary: `Publish a version of ${article(one)}`,
    tag,
    scope: `${kind.area}.write` as const,
    responses: { 200: { description: `The ${one} with this version.`, schema: viewSchemaOf(kind) } },
    ...withInput(
      { params, query: place, body: z.strictObject({ version: integer({ min: 1 }) }) },
      async ({ query, body }, request, response) => {
        const row = await store.publish(await recordOf(request, query), eventMetadataOf(request), body.version);
        response.json((await viewsOf([row]))[0]);
      },
    ),
  };

  const isOnRequest = kind.versioned?.publish === 'on_request';
  const routes = [
    withTexts(kind, 'listVersions', list),
    withTexts(kind, 'retrieveVersion', retrieve),
    ...(isOnRequest ? [withTexts(kind, 'publish', publish)] : []),
  ];
  return { routes, viewOf, numberOf };
}

/**
 * The number of a version that a path names by number or by ID. Throws not_found for the ID of another record's version, and
 * invalid_request for anything else.
 */
export function versionNumber(
  { noun, names }: Pick<AnyResource, 'noun' | 'names'>,
  row: Pick<ResourceRow, 'id' | 'slug'>,
  wanted: string,
): number {
  const [, record, digits] = /^(?:(.+)@)?(\d+)$/.exec(wanted) ?? [];
  const number = Number(digits);
  if (!(number >= 1)) {
    const message = "Invalid 'version': expected the number of a version, at least 1, or its ID.";
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'version' });
  }
  // No version has so large a number, and only safe integers can be looked up.
  if (record === undefined || record === row.id || record === row.slug) return Math.min(number, 2 ** 53 - 1);
  const message = `The ${names.one} '${row.slug ?? row.id}' has no version '${wanted.slice(0, 100)}'.`;
  throw new GatewayError('not_found', `${noun}_version_not_found`, message, { param: 'version' });
}
