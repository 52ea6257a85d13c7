import { z } from 'zod';
import type { Request } from 'express';
import { ResourceListQuery } from '#libs/contracts/lists.ts';
import { slug } from '#libs/contracts/people/access-fields.ts';
import { fingerprintBody } from '#libs/event-log/idempotency.ts';
import { getJsonBody } from '#libs/http/bodies/json-body.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, withTexts, type Route } from '#libs/http/route.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import { refuseForeignOrganisation } from '#libs/http/rights.ts';
import type { AnyResource } from './define-resource.ts';
import {
  article,
  objectOf,
  operationName,
  type Actor,
  type KindRoutes,
  type ResourceStore,
  type RouteKit,
  type StoreDeps,
} from './kit.ts';
import { pageOf, readPage } from '#libs/records/lists/list-page.ts';
import { createResourceStore } from './resource-store.ts';
import { viewOf } from './resource-view.ts';
import { textsOf } from './resource-texts.ts';
import { toCachedAnswer, answerSchemaOf, listSchemaOf, sendList } from './traits/portkey.ts';
import { isOfWorkspace } from './traits/shared.ts';
import { versionedOnRequest, versionRoutes } from './traits/versions.ts';
import { createRecordAccess } from './record-access.ts';

/** Everything that the generated routes of a kind share. */
type Routes = KindRoutes & {
  kind: AnyResource;
  store: ResourceStore<Record<string, unknown>>;
  deps: StoreDeps;
  workspaceOf: ReturnType<typeof createRecordAccess>['workspaceOf'];
  versions: ReturnType<typeof versionRoutes>;
  /** Query members for the kinds whose deleted records can be read. */
  status: z.ZodRawShape;
  /** The answer about one record. */
  answer: { description: string; schema: z.ZodObject };
};

/**
 * The routes of a kind of record: create, list, retrieve, update, delete, and those of its versions. Each route requires the
 * scope of the kind's area and is documented by the schemas that validate it.
 */
export function resourceRoutes(kind: AnyResource, deps: StoreDeps): Route[] {
  const store = createResourceStore<Record<string, unknown>>(kind, deps);
  const { workspaceOf, recordOf, requireWrite, ownerOfNew } = createRecordAccess(kind, store, deps);
  const { tag, one } = kind.names;
  const name = kind.slugs ? 'slug' : 'id';
  const texts = textsOf(kind);
  const actorOf = (request: Request): Actor => ({ caller: getCaller(request), metadata: toEventMetadata(request) });

  const viewsOf: RouteKit['viewsOf'] = async (rows) => {
    const related = await kind.related?.(rows, deps);
    const nowMs = deps.clock.now();
    return rows.map((row) => ({ ...viewOf(kind, row, nowMs), ...related?.(row) }) as { id: string });
  };

  const create: RouteKit['create'] = async (body, request, response) => {
    const { workspace_id: _workspace, organisation_id: _organisation, ...input } = body;
    const owner = await ownerOfNew(request, body);
    const call = { ...getCallIdentity(request), fingerprint: fingerprintBody(getJsonBody(request).bytes) };
    const { record, shownOnce, replayed } = await store.create(call, owner, actorOf(request), input);
    if (replayed) response.setHeader('idempotent-replayed', 'true');
    if (Object.keys(shownOnce).length > 0) response.setHeader('cache-control', 'no-store');
    response.json({ ...toCachedAnswer(kind.portkey ?? {}, record), ...shownOnce });
  };

  const kit: RouteKit = {
    create,
    recordOf,
    requireWrite,
    actorOf,
    viewsOf,
    read: { tag, scope: `${kind.area}.read` as const },
    write: { tag, scope: `${kind.area}.write` as const },
  };
  const common: KindRoutes = {
    ...kit,
    onePath: `${kind.path}/:${name}`,
    name,
    params: z.object({ [name]: z.string() }),
    place: z.object({
      workspace_id: z.string().max(200).optional(),
      ...(kind.shared ? { organisation_id: z.string().max(200).optional() } : {}),
    }),
    found: texts.found,
    schema: kind.viewSchema,
  };
  const versions = versionRoutes(kind, store, deps, common);
  const { removal } = kind;
  const status: z.ZodRawShape =
    removal && removal.archives ? { status: z.enum(['active', 'archived']).optional() } : {};
  const answer = { description: `The ${one}.`, schema: answerSchemaOf(kind.portkey ?? {}, kind.viewSchema) };
  const routes: Routes = { ...common, kind, store, deps, workspaceOf, versions, status, answer };

  return [
    ...(kind.creation === false ? [] : [withTexts(createRoute(routes), kind.texts?.create, texts.create)]),
    withTexts(listRoute(routes), kind.texts?.list, texts.list),
    withTexts(retrieveRoute(routes), kind.texts?.retrieve, texts.retrieve),
    ...updateRoutes(routes).map((route) => withTexts(route, kind.texts?.update, texts.update)),
    ...(removal === false ? [] : [withTexts(deleteRoute(routes), kind.texts?.delete, texts.delete)]),
    ...versions.routes,
    ...(kind.routes?.(store, deps, kit) ?? []),
  ];
}

const createRoute = ({ kind, write, create, answer }: Routes): Route => ({
  method: 'POST',
  path: kind.path,
  operationId: `create${operationName(kind.names.one)}`,
  summary: `Create ${article(kind.names.one)}`,
  ...write,
  responses: { 200: { ...answer, schema: answer.schema.loose() } },
  ...withInput({ body: createBodySchema(kind) }, ({ body }, request, response) => create(body, request, response)),
});

function listRoute({ kind, store, deps, workspaceOf, read, place, status, schema, viewsOf }: Routes): Route {
  const { names, portkey = {} } = kind;
  return {
    method: 'GET',
    path: kind.path,
    operationId: `list${operationName(names.many)}`,
    summary: `List ${names.many}, newest first`,
    ...read,
    responses: { 200: { description: 'A page of records.', schema: listSchemaOf(portkey, schema) } },
    ...withInput(
      { query: ResourceListQuery.extend({ ...place.shape, ...status, ...filterShape(kind) }) },
      async ({ query }, request, response) => {
        refuseForeignOrganisation(query.organisation_id);
        const page = {
          ...pageOf(query, portkey.listsBare),
          workspaceId: await workspaceOf(request, query.workspace_id),
          filters: query,
        };
        const found = await readPage(deps, request, response, (bytesMax) => store.list({ ...page, ...bytesMax }));
        sendList(portkey, response, await viewsOf(found.rows), { ...page, ...found });
      },
    ),
  };
}

const retrieveRoute = (routes: Routes): Route => ({
  method: 'GET',
  path: routes.onePath,
  operationId: `retrieve${operationName(routes.kind.names.one)}`,
  summary: `Retrieve ${article(routes.kind.names.one)}`,
  ...routes.read,
  responses: { 200: routes.answer },
  ...withInput(
    { params: routes.params, query: routes.place.extend({ ...routes.status, ...routes.kind.details?.query }) },
    async ({ query }, request, response) => {
      const { kind, store, deps, versions, recordOf, viewsOf } = routes;
      const { workspaceId, name: wanted } = await recordOf(request, query);
      // `slug@version`, for kinds whose versions are put into use on request.
      const at = versionedOnRequest(kind) ? wanted.indexOf('@') : -1;
      const isDeleted = (query as { status?: unknown }).status === 'archived';
      const row = await store.get({ workspaceId, name: at < 0 ? wanted : wanted.slice(0, at), isDeleted });
      if (at < 0) {
        const view = { ...(await viewsOf([row]))[0], ...(await kind.details?.read(row, deps, query)) };
        response.json(toCachedAnswer(kind.portkey ?? {}, view));
      } else response.json(await versions.viewOf(row, await versions.asNumber(row, wanted.slice(at + 1))));
    },
  ),
});

const updateRoute = (routes: Routes): Route => ({
  method: 'PUT',
  path: routes.onePath,
  operationId: `update${operationName(routes.kind.names.one)}`,
  summary: `Change ${article(routes.kind.names.one)}`,
  ...routes.write,
  responses: { 200: routes.answer },
  ...withInput(
    { params: routes.params, query: routes.place, body: updateBodySchema(routes.kind) },
    async ({ query, body }, request, response) => {
      const { kind, store, versions, recordOf, requireWrite, actorOf, viewsOf } = routes;
      const { workspace_id: wanted = query['workspace_id'], ...input } = body;
      const record = await recordOf(request, { workspace_id: wanted });
      await requireWrite(request, record);
      const row = await store.update(record, actorOf(request), input);
      const answersVersion = kind.versions?.view !== undefined && row.last_version !== null;
      if (answersVersion) response.json(await versions.viewOf(row, row.last_version ?? 1));
      else response.json(toCachedAnswer(kind.portkey ?? {}, { ...(await viewsOf([row]))[0] }));
    },
  ),
});

function updateRoutes(routes: Routes): Route[] {
  const { changes } = routes.kind;
  if (changes === false) return [];
  const put = updateRoute(routes);
  return changes?.byPost ? [put, { ...put, method: 'POST', operationId: `${put.operationId}ByPost` }] : [put];
}

function deleteRoute({ kind, store, onePath, params, place, write, recordOf, requireWrite, actorOf }: Routes): Route {
  const { one } = kind.names;
  const schema = z.object({
    id: z.string(),
    object: z.literal(objectOf(kind)),
    ...(kind.slugs ? { slug: z.string() } : {}),
    deleted: z.literal(true),
  });
  return {
    method: 'DELETE',
    path: onePath,
    operationId: `delete${operationName(one)}`,
    summary: `Delete ${article(one)}`,
    ...write,
    responses: { 200: { description: `The ${one} was deleted.`, schema } },
    ...withInput(
      { params, query: place.extend((kind.removal && kind.removal.query) || {}) },
      async ({ query }, request, response) => {
        const record = await recordOf(request, query);
        await requireWrite(request, record);
        const row = await store.remove(record, actorOf(request), query);
        const slug = kind.slugs ? { slug: row.slug } : {};
        response.json({ id: row.id, object: objectOf(kind), ...slug, deleted: true });
      },
    ),
  };
}

const filterShape = ({ filters = {} }: AnyResource): z.ZodRawShape =>
  Object.fromEntries(Object.entries(filters).map(([name, { schema }]) => [name, schema.optional()]));

/**
 * The body of POST. An organisation key can choose the workspace; other keys can only name their own.
 * @testOnly
 */
export function createBodySchema(kind: AnyResource): z.ZodObject {
  return z.strictObject({
    ...kind.fields,
    ...(kind.slugs ? { slug: slug().optional() } : {}),
    ...(isOfWorkspace(kind) ? { workspace_id: z.string().min(1).max(200).optional() } : {}),
    ...(kind.shared ? { organisation_id: z.string().min(1).max(200).optional() } : {}),
  });
}

/**
 * The body of PUT: absent members stay as they are, so no member has a default.
 * @testOnly
 */
export function updateBodySchema(kind: AnyResource): z.ZodObject {
  const { immutable = [], fields = {} } = kind.changes || {};
  const changeable = Object.entries(kind.fields as z.ZodRawShape).filter(([name]) => !immutable.includes(name));
  const optional = changeable.map(([name, field]) => [name, withoutDefault(field as z.ZodType).optional()] as const);
  // Portkey's clients name the workspace of a change here.
  const place = isOfWorkspace(kind) ? { workspace_id: z.string().min(1).max(200).optional() } : {};
  return z.strictObject({ ...place, ...Object.fromEntries(optional), ...fields });
}

/** zod also applies a default inside of `.optional()`, so a PUT of one member would reset the others. */
const withoutDefault = (field: z.ZodType): z.ZodType =>
  field instanceof z.ZodDefault ? (field.unwrap() as z.ZodType) : field;
