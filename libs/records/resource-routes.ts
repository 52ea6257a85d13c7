import { z } from 'zod';
import type { Request } from 'express';
import { ResourceListQuery } from '#libs/contracts/lists.ts';
import { slug } from '#libs/contracts/people/access-fields.ts';
import { rebind } from '#libs/database/workspace-binding.ts';
import { fingerprintBody } from '#libs/event-log/idempotency.ts';
import { getJsonBody } from '#libs/http/bodies/json-body.ts';
import { organisationId } from '#libs/http/caller.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, withTexts, type Route } from '#libs/http/route.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import { actsForOrganisation, refuseForeignOrganisation, requireOrganisation } from '#libs/http/rights.ts';
import type { AnyResource } from './define-resource.ts';
import { article, objectOf, operationName, type Actor, type RecordName, type RouteKit, type StoreDeps } from './kit.ts';
import { pageOf, readPage } from '#libs/records/lists/list-page.ts';
import { createResourceStore } from './resource-store.ts';
import { viewOf } from './resource-view.ts';
import { textsOf } from './resource-texts.ts';
import { toCachedAnswer, answerSchemaOf, listSchemaOf, sendList } from './traits/portkey.ts';
import { isOfWorkspace } from './traits/shared.ts';
import { versionedOnRequest, versionRoutes } from './traits/versions.ts';
import { chosenWorkspace, workspaceOfRecord } from './choose-workspace.ts';

/**
 * The routes of a kind of record: create, list, retrieve, update, delete, and those of its versions. Each route requires the
 * scope of the kind's area and is documented by the schemas that validate it.
 */
export function resourceRoutes(kind: AnyResource, deps: StoreDeps): Route[] {
  const store = createResourceStore<Record<string, unknown>>(kind, deps);
  const { db, clock } = deps;
  const { one, many, tag } = kind.names;
  const name = kind.slugs ? 'slug' : 'id';
  const onePath = `${kind.path}/:${name}`;
  const operation = operationName(one);
  const { shared, portkey = {}, removal } = kind;
  const texts = textsOf(kind);
  const read = { tag, scope: `${kind.area}.read` as const };
  const write = { tag, scope: `${kind.area}.write` as const };
  const schema = kind.viewSchema;
  const answerSchema = answerSchemaOf(portkey, schema);
  const params = z.object({ [name]: z.string() });
  const place = z.object({
    workspace_id: z.string().max(200).optional(),
    ...(shared ? { organisation_id: z.string().max(200).optional() } : {}),
  });
  const status = removal && removal.archives ? { status: z.enum(['active', 'archived']).optional() } : {};
  const actorOf = (request: Request): Actor => ({ caller: getCaller(request), metadata: toEventMetadata(request) });

  /** The workspace whose records a request is about; null for the records of the whole organisation. */
  const workspaceOf = async (request: Request, wanted: unknown): Promise<string | null> => {
    const caller = getCaller(request);
    const isOfAll = !isOfWorkspace(kind) || (shared?.isDefault && wanted === undefined);
    if (isOfAll && actsForOrganisation(caller)) {
      rebind(null);
      return null;
    }
    if (!isOfWorkspace(kind)) return caller.workspaceId;
    const workspaceId = await chosenWorkspace(db, caller, wanted as string | undefined);
    await kind.prepare?.(workspaceId, deps);
    return workspaceId;
  };
  const recordOf: RouteKit['recordOf'] = async (request, query) => {
    refuseForeignOrganisation(query.organisation_id);
    const wanted = String(request.params[name]);
    const isOfOne = isOfWorkspace(kind) && shared?.isDefault !== true;
    const place =
      query.workspace_id ?? (isOfOne ? await workspaceOfRecord(db, getCaller(request), kind, wanted) : undefined);
    return { workspaceId: await workspaceOf(request, place), name: wanted };
  };
  const requireOrganisationKey = (request: Request): void =>
    requireOrganisation(getCaller(request), `do this to ${many}`);

  const viewsOf: RouteKit['viewsOf'] = async (rows) => {
    const related = await kind.related?.(rows, deps);
    const nowMs = clock.now();
    return rows.map((row) => ({ ...viewOf(kind, row, nowMs), ...related?.(row) }) as { id: string });
  };

  const createRecord: RouteKit['create'] = async (body, request, response) => {
    if (!isOfWorkspace(kind)) requireOrganisationKey(request);
    const { workspace_id: wanted, organisation_id: organisation, ...input } = body;
    const isOfOrganisation =
      organisation !== undefined || (shared?.isDefault === true && actsForOrganisation(getCaller(request)));
    const isShared = shared !== undefined && wanted === undefined && isOfOrganisation;
    refuseForeignOrganisation(organisation);
    if (isShared) {
      requireOrganisationKey(request);
      rebind(null);
    }
    const workspaceId = isShared ? organisationId : ((await workspaceOf(request, wanted)) ?? organisationId);
    const call = { ...getCallIdentity(request), fingerprint: fingerprintBody(getJsonBody(request).bytes) };
    const { record, shownOnce, replayed } = await store.create(call, workspaceId, actorOf(request), input);
    if (replayed) response.setHeader('idempotent-replayed', 'true');
    if (Object.keys(shownOnce).length > 0) response.setHeader('cache-control', 'no-store');
    response.json({ ...toCachedAnswer(portkey, record), ...shownOnce });
  };

  const kit: RouteKit = {
    create: createRecord,
    recordOf,
    requireWrite: refuseForeignWrite,
    actorOf,
    viewsOf,
    read,
    write,
  };
  const { found } = texts;
  const versions = versionRoutes(kind, store, deps, { ...kit, onePath, name, params, place, schema, found });

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

  const retrieve: Route = {
    method: 'GET',
    path: onePath,
    operationId: `retrieve${operation}`,
    summary: `Retrieve ${article(one)}`,
    ...read,
    responses: { 200: { description: `The ${one}.`, schema: answerSchema } },
    ...withInput(
      { params, query: place.extend({ ...status, ...kind.details?.query }) },
      async ({ query }, request, response) => {
        const { workspaceId, name: wanted } = await recordOf(request, query);
        // `slug@version`, for kinds whose versions are put into use on request.
        const at = versionedOnRequest(kind) ? wanted.indexOf('@') : -1;
        const isDeleted = (query as { status?: unknown }).status === 'archived';
        const row = await store.get({ workspaceId, name: at < 0 ? wanted : wanted.slice(0, at), isDeleted });
        if (at < 0)
          response.json(
            toCachedAnswer(portkey, { ...(await viewsOf([row]))[0], ...(await kind.details?.read(row, deps, query)) }),
          );
        else response.json(await versions.viewOf(row, await versions.asNumber(row, wanted.slice(at + 1))));
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
      const answersVersion = kind.versions?.view !== undefined && row.last_version !== null;
      if (answersVersion) response.json(await versions.viewOf(row, row.last_version ?? 1));
      else response.json(toCachedAnswer(portkey, { ...(await viewsOf([row]))[0] }));
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
        description: `The ${one} was deleted.`,
        schema: z.object({
          id: z.string(),
          object: z.literal(objectOf(kind)),
          ...(kind.slugs ? { slug: z.string() } : {}),
          deleted: z.literal(true),
        }),
      },
    },
    ...withInput(
      { params, query: place.extend((removal && removal.query) || {}) },
      async ({ query }, request, response) => {
        const record = await recordOf(request, query);
        await refuseForeignWrite(request, record);
        const row = await store.remove(record, actorOf(request), query);
        const slug = kind.slugs ? { slug: row.slug } : {};
        response.json({ id: row.id, object: objectOf(kind), ...slug, deleted: true });
      },
    ),
  };

  /** A record that the caller cannot see is not found; one that it can see but not change is forbidden. */
  async function refuseForeignWrite(request: Request, record: RecordName): Promise<void> {
    if (isOfWorkspace(kind) && shared === undefined) return;
    const { workspace_id: owner } = await store.get(record);
    if (shared !== undefined && owner !== organisationId) return;
    requireOrganisationKey(request);
    if (owner === organisationId) rebind(null);
  }

  return [
    ...(kind.creation === false ? [] : [withTexts(create, kind.texts?.create, texts.create)]),
    withTexts(list, kind.texts?.list, texts.list),
    withTexts(retrieve, kind.texts?.retrieve, texts.retrieve),
    ...(kind.changes === false ? [] : [withTexts(update, kind.texts?.update, texts.update)]),
    ...(removal === false ? [] : [withTexts(remove, kind.texts?.delete, texts.delete)]),
    ...versions.routes,
    ...(kind.routes?.(store, deps, kit) ?? []),
  ];
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
