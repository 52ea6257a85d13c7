import { z } from 'zod';
import type { Request } from 'express';
import { listOf, ResourceListQuery } from '#libs/contracts/lists.ts';
import { fingerprintOf } from '#libs/event-log/idempotency.ts';
import { jsonBodyOf } from '#libs/http/json-body.ts';
import { organisationId } from '#libs/http/caller.ts';
import { toListResponse } from '#libs/http/list-response.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { callIdentityOf, eventMetadataOf } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Actor, AnyResource, RecordName, StoreDeps } from './define-resource.ts';
import { createBodySchema, updateBodySchema, versionParams } from './resource-schemas.ts';
import { createResourceStore } from './resource-store.ts';
import { objectOf, versionSchemaOf, versionViewOf, viewOf, viewSchemaOf } from './resource-view.ts';
import { chosenWorkspace } from './choose-workspace.ts';

/**
 * The routes of a kind of record: create, list, retrieve, update, delete, and those of its versions. Each has the scope
 * of the kind's area, and is documented by the schemas that check it.
 */
export function resourceRoutes(kind: AnyResource, deps: StoreDeps): Route[] {
  const store = createResourceStore<Record<string, unknown>>(kind, deps);
  const { db, clock } = deps;
  const { one, many, tag } = kind.names;
  const name = kind.slug ? 'slug' : 'id';
  const onePath = `${kind.path}/:${name}`;
  const operation = kind.noun.replaceAll(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const read = { tag, scope: `${kind.area}.read` as const };
  const write = { tag, scope: `${kind.area}.write` as const };
  const schema = viewSchemaOf(kind);
  const params = z.object({ [name]: z.string() });
  const place = z.object({ workspace_id: z.string().max(200).optional() });
  const actorOf = (request: Request): Actor => ({ caller: callerOf(request), metadata: eventMetadataOf(request) });

  /** The workspace whose records a request is about; null for those of the whole organisation. */
  const workspaceOf = async (request: Request, wanted: unknown): Promise<string | null> => {
    const caller = callerOf(request);
    const isOfOrganisation = (kind.owner ?? 'workspace') !== 'workspace';
    if (isOfOrganisation) return caller.principal.type === 'organisation_key' ? null : caller.workspaceId;
    return await chosenWorkspace(db, caller, wanted as string | undefined);
  };
  const recordOf = async (request: Request, query: { workspace_id?: unknown }): Promise<RecordName> => ({
    workspaceId: await workspaceOf(request, query.workspace_id),
    name: String(request.params[name]),
  });
  /** What the organisation owns, only its keys change. */
  const refuseWorkspaceKey = (request: Request): void => {
    if ((kind.owner ?? 'workspace') === 'workspace' || callerOf(request).principal.type === 'organisation_key') return;
    const message = `Only a key of the organisation can do this to ${many}: use one, such as the first admin key.`;
    throw new GatewayError('forbidden', 'organisation_key_required', message);
  };

  const create: Route = {
    method: 'POST',
    path: kind.path,
    operationId: `create${operation}`,
    summary: `Create ${article(one)}`,
    ...write,
    responses: { 200: { description: `The ${one}.`, schema: schema.loose() } },
    ...withInput({ body: createBodySchema(kind) }, async ({ body }, request, response) => {
      refuseWorkspaceKey(request);
      const { workspace_id: wanted, ...input } = body;
      const workspaceId = (await workspaceOf(request, wanted)) ?? organisationId;
      const call = { ...callIdentityOf(request), fingerprint: fingerprintOf(jsonBodyOf(request).bytes) };
      const { record, shownOnce, replayed } = await store.create(call, workspaceId, actorOf(request), input);
      if (replayed) response.setHeader('idempotent-replayed', 'true');
      if (Object.keys(shownOnce).length > 0) response.setHeader('cache-control', 'no-store');
      response.json({ ...record, ...shownOnce });
    }),
  };

  const list: Route = {
    method: 'GET',
    path: kind.path,
    operationId: `list${operation}s`,
    summary: `List ${many}, newest first`,
    ...read,
    responses: { 200: { description: 'A page of records.', schema: listOf(schema).extend({ total: z.int() }) } },
    ...withInput(
      { query: ResourceListQuery.extend({ ...place.shape, ...filterShape(kind) }) },
      async ({ query }, request, response) => {
        const page = { ...pageOf(query), workspaceId: await workspaceOf(request, query.workspace_id), filters: query };
        const { rows, total } = await store.list(page);
        const nowMs = clock.now();
        const views = rows.map((row) => viewOf(kind, row, nowMs) as { id: string });
        response.json({ ...toListResponse(views, page.limit), total });
      },
    ),
  };

  const retrieve: Route = {
    method: 'GET',
    path: onePath,
    operationId: `retrieve${operation}`,
    summary: `Retrieve ${article(one)}`,
    ...read,
    responses: { 200: { description: `The ${one}.`, schema } },
    ...withInput({ params, query: place }, async ({ query }, request, response) => {
      response.json(viewOf(kind, await store.get(await recordOf(request, query)), clock.now()));
    }),
  };

  const update: Route = {
    method: 'PUT',
    path: onePath,
    operationId: `update${operation}`,
    summary: `Change ${article(one)}: what is left out stays`,
    ...write,
    responses: { 200: { description: `The ${one}.`, schema } },
    ...withInput({ params, query: place, body: updateBodySchema(kind) }, async ({ query, body }, request, response) => {
      const record = await recordOf(request, query);
      await refuseForeignWrite(request, record);
      response.json(viewOf(kind, await store.update(record, actorOf(request), body), clock.now()));
    }),
  };

  const remove: Route = {
    method: 'DELETE',
    path: onePath,
    operationId: `delete${operation}`,
    summary: `Delete ${article(one)}`,
    ...write,
    responses: {
      200: {
        description: `The ${one} is gone.`,
        schema: z.object({
          id: z.string(),
          object: z.literal(objectOf(kind)),
          ...(kind.slug ? { slug: z.string() } : {}),
          deleted: z.literal(true),
        }),
      },
    },
    ...withInput({ params, query: place }, async ({ query }, request, response) => {
      const record = await recordOf(request, query);
      await refuseForeignWrite(request, record);
      const { id, slug } = await store.remove(record, actorOf(request));
      response.json({ id, object: objectOf(kind), ...(kind.slug ? { slug } : {}), deleted: true });
    }),
  };

  /** A record that the caller cannot see is not found; one that it sees but may not change is forbidden. */
  async function refuseForeignWrite(request: Request, record: RecordName): Promise<void> {
    if ((kind.owner ?? 'workspace') === 'workspace') return;
    await store.get(record);
    refuseWorkspaceKey(request);
  }

  const listVersions: Route = {
    method: 'GET',
    path: `${onePath}/versions`,
    operationId: `list${operation}Versions`,
    summary: `List the versions of ${article(one)}, newest first`,
    ...read,
    responses: {
      200: { description: 'A page of versions.', schema: listOf(versionSchemaOf(kind)).extend({ total: z.int() }) },
    },
    ...withInput({ params, query: ResourceListQuery.extend(place.shape) }, async ({ query }, request, response) => {
      const row = await store.get(await recordOf(request, query));
      const page = { ...pageOf(query), workspaceId: row.workspace_id };
      const { rows, total } = await store.listVersions(row, page);
      const views = rows.map((version) => versionViewOf(kind, row, version) as { id: string });
      response.json({ ...toListResponse(views, page.limit), total });
    }),
  };

  const retrieveVersion: Route = {
    method: 'GET',
    path: `${onePath}/versions/:version`,
    operationId: `retrieve${operation}Version`,
    summary: `Retrieve a version of ${article(one)}`,
    ...read,
    responses: { 200: { description: 'The version.', schema: versionSchemaOf(kind) } },
    ...withInput({ params: versionParams(name), query: place }, async ({ params, query }, request, response) => {
      const row = await store.get(await recordOf(request, query));
      response.json(versionViewOf(kind, row, await store.getVersion(row, params.version)));
    }),
  };

  return [
    create,
    list,
    retrieve,
    ...(kind.hasUpdate === false ? [] : [update]),
    remove,
    ...(kind.versioned ? [listVersions, retrieveVersion] : []),
    ...(kind.routes?.(store, deps) ?? []),
  ];
}

const article = (noun: string): string => `${/^[aeiou]/i.test(noun) ? 'an' : 'a'} ${noun}`;

const filterShape = ({ filters = {} }: AnyResource): z.ZodRawShape =>
  Object.fromEntries(Object.entries(filters).map(([name, { schema }]) => [name, schema.optional()]));

type PageQuery = { after?: unknown; limit?: unknown; current_page?: unknown; page_size?: unknown };

/** Both habits of paging: `after` and `limit`, or `current_page` (from 0) and `page_size`. Throws for a mix of them. */
export function pageOf(query: PageQuery): { after: string | null; skip: number; limit: number } {
  const { after, limit, current_page: page, page_size: size } = query as Record<string, string & number>;
  if (after !== undefined && page !== undefined) {
    const message = "Invalid 'current_page': a page is chosen by 'after' or by 'current_page', not by both.";
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'current_page' });
  }
  const count = size ?? limit ?? 20;
  return { after: after ?? null, skip: (page ?? 0) * count, limit: count };
}
