import { z } from 'zod';
import type { Request } from 'express';
import { ResourceListQuery } from '#libs/contracts/lists.ts';
import { anyObject } from '#libs/contracts/scalars.ts';
import { rebind } from '#libs/database/workspace-binding.ts';
import { fingerprintOf } from '#libs/event-log/idempotency.ts';
import { jsonBodyOf } from '#libs/http/bodies/json-body.ts';
import { organisationId } from '#libs/http/caller.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { callIdentityOf, eventMetadataOf } from '#libs/identity/call-identity.ts';
import { actsForOrganisation, refuseForeignOrganisation, requireOrganisation } from '#libs/http/rights.ts';
import type { AnyResource } from './define-resource.ts';
import type { Actor, RecordName, RouteKit, StoreDeps } from './kit.ts';
import { listSchemaOf, pageOf, readPage, sendList } from '#libs/records/lists/list-page.ts';
import { createBodySchema, updateBodySchema } from './resource-schemas.ts';
import { createResourceStore } from './resource-store.ts';
import { article, objectOf, viewOf, viewSchemaOf } from './resource-view.ts';
import { withTexts } from './resource-texts.ts';
import { versionRoutes } from './version-routes.ts';
import { chosenWorkspace, workspaceOfRecord } from './choose-workspace.ts';

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
  const operation = operationName(one);
  const read = { tag, scope: `${kind.area}.read` as const };
  const write = { tag, scope: `${kind.area}.write` as const };
  const schema = viewSchemaOf(kind);
  const { answerData } = kind;
  const answerSchema = answerData ? schema.extend({ success: z.literal(true), data: anyObject() }) : schema;
  const answerOf = (view: object): object =>
    answerData ? { ...view, success: true, data: answerData(view as Record<string, unknown>) } : view;
  const params = z.object({ [name]: z.string() });
  const place = z.object({
    workspace_id: z.string().max(200).optional(),
    ...(kind.hasShared ? { organisation_id: z.string().max(200).optional() } : {}),
  });
  const status = kind.isArchived ? { status: z.enum(['active', 'archived']).optional() } : {};
  const actorOf = (request: Request): Actor => ({ caller: callerOf(request), metadata: eventMetadataOf(request) });

  /** The workspace whose records a request is about; null for those of the whole organisation. */
  const workspaceOf = async (request: Request, wanted: unknown): Promise<string | null> => {
    const caller = callerOf(request);
    const isOfOrganisation = (kind.owner ?? 'workspace') !== 'workspace';
    const isOfAll = isOfOrganisation || (kind.isOrganisationFirst && wanted === undefined);
    if (isOfAll && actsForOrganisation(caller)) {
      rebind(null);
      return null;
    }
    if (isOfOrganisation) return caller.workspaceId;
    const workspaceId = await chosenWorkspace(db, caller, wanted as string | undefined);
    await kind.prepare?.(workspaceId, deps);
    return workspaceId;
  };
  const recordOf: RouteKit['recordOf'] = async (request, query) => {
    refuseForeignOrganisation(query.organisation_id);
    const wanted = String(request.params[name]);
    const isOfWorkspace = (kind.owner ?? 'workspace') === 'workspace' && kind.isOrganisationFirst !== true;
    const place =
      query.workspace_id ?? (isOfWorkspace ? await workspaceOfRecord(db, callerOf(request), kind, wanted) : undefined);
    return { workspaceId: await workspaceOf(request, place), name: wanted };
  };
  /** What the organisation owns is changed by those who act for it. */
  const refuseWorkspaceKey = (request: Request): void => {
    if ((kind.owner ?? 'workspace') !== 'workspace') requireOrganisationKey(request);
  };
  const requireOrganisationKey = (request: Request): void =>
    requireOrganisation(callerOf(request), `do this to ${many}`);

  const viewsOf: RouteKit['viewsOf'] = async (rows) => {
    const related = await kind.related?.(rows, deps);
    const nowMs = clock.now();
    return rows.map((row) => ({ ...viewOf(kind, row, nowMs), ...related?.(row) }) as { id: string });
  };

  const createRecord: RouteKit['create'] = async (body, request, response) => {
    refuseWorkspaceKey(request);
    const { workspace_id: wanted, organisation_id: organisation, ...input } = body;
    const isOfOrganisation =
      organisation !== undefined || (kind.isOrganisationFirst === true && actsForOrganisation(callerOf(request)));
    const isShared = kind.hasShared === true && wanted === undefined && isOfOrganisation;
    refuseForeignOrganisation(organisation);
    if (isShared) {
      requireOrganisationKey(request);
      rebind(null);
    }
    const workspaceId = isShared ? organisationId : ((await workspaceOf(request, wanted)) ?? organisationId);
    const call = { ...callIdentityOf(request), fingerprint: fingerprintOf(jsonBodyOf(request).bytes) };
    const { record, shownOnce, replayed } = await store.create(call, workspaceId, actorOf(request), input);
    if (replayed) response.setHeader('idempotent-replayed', 'true');
    if (Object.keys(shownOnce).length > 0) response.setHeader('cache-control', 'no-store');
    response.json({ ...answerOf(record), ...shownOnce });
  };

  const kit: RouteKit = { create: createRecord, recordOf, requireWrite: refuseForeignWrite, actorOf, viewsOf };
  const versions = versionRoutes(kind, store, deps, kit);

  const create: Route = {
    method: 'POST',
    path: kind.path,
    operationId: `create${operation}`,
    summary: `Create ${article(one)}`,
    ...write,
    responses: { 200: { description: `The ${one}.`, schema: answerSchema.loose() } },
    ...withInput({ body: createBodySchema(kind) }, ({ body }, request, response) =>
      createRecord(body, request, response),
    ),
  };

  const list: Route = {
    method: 'GET',
    path: kind.path,
    operationId: `list${operationName(many)}`,
    summary: `List ${many}, newest first`,
    ...read,
    responses: { 200: { description: 'A page of records.', schema: listSchemaOf(kind, schema) } },
    ...withInput(
      { query: ResourceListQuery.extend({ ...place.shape, ...status, ...filterShape(kind) }) },
      async ({ query }, request, response) => {
        refuseForeignOrganisation(query.organisation_id);
        const page = {
          ...pageOf(query, kind.listsBare),
          workspaceId: await workspaceOf(request, query.workspace_id),
          filters: query,
        };
        const found = await readPage(deps, request, response, (bytesMax) => store.list({ ...page, ...bytesMax }));
        sendList(kind, response, await viewsOf(found.rows), { ...page, ...found });
      },
    ),
  };

  const retrieve: Route = {
    method: 'GET',
    path: onePath,
    operationId: `retrieve${operation}`,
    summary: `Retrieve ${article(one)}`,
    ...read,
    responses: { 200: { description: `The ${one}.`, schema: answerSchema } },
    ...withInput(
      { params, query: place.extend({ ...status, ...kind.detailsQuery }) },
      async ({ query }, request, response) => {
        const { workspaceId, name: wanted } = await recordOf(request, query);
        // `slug@version`, of kinds whose versions are put into use on request.
        const at = kind.versioned?.publish === 'on_request' ? wanted.indexOf('@') : -1;
        const isDeleted = (query as { status?: unknown }).status === 'archived';
        const row = await store.get({ workspaceId, name: at < 0 ? wanted : wanted.slice(0, at), isDeleted });
        if (at < 0)
          response.json(answerOf({ ...(await viewsOf([row]))[0], ...(await kind.details?.(row, deps, query)) }));
        else response.json(await versions.viewOf(row, await versions.numberOf(row, wanted.slice(at + 1)), 'alone'));
      },
    ),
  };

  const update: Route = {
    method: 'PUT',
    path: onePath,
    operationId: `update${operation}`,
    summary: `Change ${article(one)}`,
    ...write,
    responses: { 200: { description: `The ${one}.`, schema: answerSchema } },
    ...withInput({ params, query: place, body: updateBodySchema(kind) }, async ({ query, body }, request, response) => {
      const { workspace_id: wanted = query.workspace_id, ...input } = body;
      const record = await recordOf(request, { workspace_id: wanted });
      await refuseForeignWrite(request, record);
      const row = await store.update(record, actorOf(request), input);
      const answersVersion = kind.versioned?.view !== undefined && row.last_version !== null;
      if (answersVersion) response.json(await versions.viewOf(row, row.last_version ?? 1, 'alone'));
      else response.json(answerOf({ ...(await viewsOf([row]))[0] }));
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
        description: `The ${one} is deleted.`,
        schema: z.object({
          id: z.string(),
          object: z.literal(objectOf(kind)),
          ...(kind.slug ? { slug: z.string() } : {}),
          deleted: z.literal(true),
        }),
      },
    },
    ...withInput({ params, query: place.extend(kind.removal?.query ?? {}) }, async ({ query }, request, response) => {
      const record = await recordOf(request, query);
      await refuseForeignWrite(request, record);
      const row = await store.remove(record, actorOf(request), query);
      const slug = kind.slug ? { slug: row.slug } : {};
      response.json({ id: row.id, object: objectOf(kind), ...slug, deleted: true });
    }),
  };

  /** A record that the caller cannot see is not found; one that it sees but may not change is forbidden. */
  async function refuseForeignWrite(request: Request, record: RecordName): Promise<void> {
    if ((kind.owner ?? 'workspace') === 'workspace' && kind.hasShared !== true) return;
    const { workspace_id: owner } = await store.get(record);
    if (kind.hasShared === true && owner !== organisationId) return;
    requireOrganisationKey(request);
    if (owner === organisationId) rebind(null);
  }

  return [
    ...(kind.hasCreate === false ? [] : [withTexts(kind, 'create', create)]),
    withTexts(kind, 'list', list),
    withTexts(kind, 'retrieve', retrieve),
    ...(kind.hasUpdate === false ? [] : [withTexts(kind, 'update', update)]),
    ...(kind.hasRemove === false ? [] : [withTexts(kind, 'delete', remove)]),
    ...(kind.versioned ? versions.routes : []),
    ...(kind.routes?.(store, deps, kit) ?? []),
  ];
}

/** `ApiKeys` for `API keys`: the form of a kind's names in operation IDs. */
const operationName = (name: string): string =>
  name
    .split(/[^A-Za-z]+/)
    .map((word) => word.slice(0, 1).toUpperCase() + word.slice(1).toLowerCase())
    .join('');

const filterShape = ({ filters = {} }: AnyResource): z.ZodRawShape =>
  Object.fromEntries(Object.entries(filters).map(([name, { schema }]) => [name, schema.optional()]));
