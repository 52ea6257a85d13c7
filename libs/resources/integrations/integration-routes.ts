import { sql } from 'kysely';
import { z } from 'zod';
import {
  integrationLimits,
  ModelsObject,
  SetModelsRequest,
  SetWorkspacesRequest,
  WorkspacesObject,
} from '#libs/contracts/integrations.ts';
import { organisationId } from '#libs/http/caller.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { findWorkspace, noSuchWorkspace } from '#libs/records/choose-workspace.ts';
import type { ResourceStore, RouteKit } from '#libs/records/kit.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import { shownAccess, type GlobalAccess, type IntegrationData, type WorkspaceAccess } from './integration-data.ts';
import { addDefaultProviders } from './providers.ts';
import { asJson, type ResourceRow } from '#libs/records/resource-row.ts';
import { storedLimits } from '#libs/resources/limits/own-limits.ts';

const integrationErrors = { integration_not_found: 'no integration with this slug or ID is visible to the key' };
const changeErrors = {
  ...integrationErrors,
  organisation_key_required: 'only organisation keys and owners can change shared records',
};

const tag = 'Integrations';
const params = z.object({ slug: z.string() });
const place = z.object({ workspace_id: z.string().max(200).optional() });

const models = { path: '/v1/integrations/:slug/models', tag };
const workspaces = { path: '/v1/integrations/:slug/workspaces', tag };
const [read, write] = [{ scope: 'integrations.read' as const }, { scope: 'integrations.write' as const }];
const modelsAnswer = { responses: { 200: { description: 'The models.', schema: ModelsObject } } };
const workspacesAnswer = { responses: { 200: { description: 'The workspaces.', schema: WorkspacesObject } } };

type Store = ResourceStore<IntegrationData>;

/** The routes of what an integration allows: its models, and the workspaces that it is shared with. */
export const integrationRoutes = (store: Store, deps: KindDeps, kit: RouteKit): Route[] => [
  ...modelRoutes(store, kit),
  ...workspaceRoutes(store, deps, kit),
];

const modelRoutes = (store: Store, kit: RouteKit): Route[] => [
  {
    ...models,
    ...read,
    ...modelsAnswer,
    method: 'GET',
    operationId: 'listIntegrationModels',
    summary: 'List the models of an integration',
    description:
      'Lists the models that are allowed, excluded or priced individually. `allow_all_models` applies to all others.',
    errors: integrationErrors,
    ...withInput({ params, query: place }, async ({ query }, request, response) => {
      response.json(modelsOf(await store.get(await kit.recordOf(request, query))));
    }),
  },
  {
    ...models,
    ...write,
    ...modelsAnswer,
    method: 'PUT',
    operationId: 'setIntegrationModels',
    summary: 'Allow and exclude models of an integration; models that you leave out stay unchanged',
    description:
      'Applies to every route and to batch lines. Add custom and fine-tuned models with `is_custom` and `is_finetune`.',
    example: { allow_all_models: false, models: [{ slug: 'gpt-5-mini', enabled: true }] },
    errors: { ...changeErrors, limit_exceeded: 'an integration can list at most 1,000 models' },
    ...withInput({ params, query: place, body: SetModelsRequest }, async ({ query, body }, request, response) => {
      const record = await kit.recordOf(request, query);
      await kit.requireWrite(request, record);
      const { models: given, ...rest } = asJson(body);
      const named = Object.fromEntries(given.map(({ slug, ...model }) => [slug, model]));
      const { metadata } = kit.actorOf(request);
      const row = await store.change(record, metadata, (_unit, { data }) => {
        refuseMore(Object.keys({ ...data.models, ...named }).length, integrationLimits.modelsMax, 'models');
        return [{ type: 'integration.models_set', data: { ...rest, models: named } }];
      });
      response.json(modelsOf(row));
    }),
  },
  {
    ...models,
    ...write,
    ...modelsAnswer,
    method: 'DELETE',
    operationId: 'deleteIntegrationModels',
    summary: 'Remove models from the list of an integration',
    description: 'Pass the models as `slugs` in the query. Afterwards, `allow_all_models` applies to them.',
    errors: changeErrors,
    ...withInput(
      { params, query: place.extend({ slugs: z.string().min(1).max(100_000) }) },
      async ({ query }, request, response) => {
        const record = await kit.recordOf(request, query);
        await kit.requireWrite(request, record);
        const wanted = new Set(query.slugs.split(',').map((slug) => slug.trim()));
        const row = await store.change(record, kit.actorOf(request).metadata, (_unit, { data }) => {
          const slugs = Object.keys(data.models ?? {}).filter((slug) => wanted.has(slug));
          return slugs.length === 0 ? [] : [{ type: 'integration.models_removed', data: { slugs } }];
        });
        response.json(modelsOf(row));
      },
    ),
  },
];

const workspaceRoutes = (store: Store, deps: KindDeps, kit: RouteKit): Route[] => [
  {
    ...workspaces,
    ...read,
    ...workspacesAnswer,
    method: 'GET',
    operationId: 'listIntegrationWorkspaces',
    summary: 'List the workspaces that an integration is shared with',
    description:
      'Includes the budgets and rates of each workspace, and the default access of all others. Workspace keys only see ' +
      'their own workspace.',
    errors: integrationErrors,
    ...withInput({ params, query: place }, async ({ query }, request, response) => {
      const record = await kit.recordOf(request, query);
      const row = await store.get(record);
      response.json(workspacesOf(row, record.workspaceId, deps.clock.now()));
    }),
  },
  {
    ...workspaces,
    ...write,
    ...workspacesAnswer,
    method: 'PUT',
    operationId: 'setIntegrationWorkspaces',
    summary: 'Share an integration of the organisation with workspaces; workspaces that you leave out stay unchanged',
    description: 'Each enabled workspace gets its own provider unless `create_default_provider` is false.',
    example: {
      workspaces: [
        {
          id: 'ws_abc',
          enabled: true,
          usage_limits: [{ type: 'cost', credit_limit: 10_000, periodic_reset: 'monthly' }],
        },
      ],
    },
    errors: {
      ...changeErrors,
      workspace_not_found: 'one of `workspaces` does not exist',
      integration_of_workspace: 'the integration belongs to one workspace',
      limit_exceeded: 'an integration can be shared individually with at most 1,000 workspaces',
    },
    ...withInput({ params, query: place, body: SetWorkspacesRequest }, async ({ query, body }, request, response) => {
      const record = await kit.recordOf(request, query);
      await kit.requireWrite(request, record);
      const given = await withIds(deps, body.workspaces);
      const { metadata } = kit.actorOf(request);
      const row = await store.change(record, metadata, (unit, { data, workspace_id: owner }) => {
        if (owner !== organisationId) throw ofOneWorkspace();
        const event = sharingOf(body, given, data, unit.now.toISOString());
        const replaced = event.replaces ? {} : data.workspaces;
        const count = Object.keys({ ...replaced, ...event.workspaces }).length;
        refuseMore(count, integrationLimits.workspacesMax, 'workspaces');
        return [{ type: 'integration.workspaces_set', data: event }];
      });
      const isForAll = body.global_workspace_access?.enabled === true && body.create_default_provider;
      const shared = given
        .filter(({ enabled, create_default_provider: own }) => enabled && (own ?? body.create_default_provider))
        .map(({ id, default_provider_slug: own }) => ({ workspaceId: id, slug: own ?? body.default_provider_slug }));
      const named = new Set(given.map(({ id }) => id));
      const others = isForAll ? await otherWorkspaces(deps, named, row.data.workspaces) : [];
      const unnamed = others.map((workspaceId) => ({ workspaceId, slug: body.default_provider_slug }));
      await addDefaultProviders(deps, metadata, row, [...shared, ...unnamed]);
      await deps.snapshot.catchUp();
      response.json(workspacesOf(row, record.workspaceId, deps.clock.now()));
    }),
  },
];

type SharedWorkspace = z.output<typeof SetWorkspacesRequest>['workspaces'][number];

/** Replaces workspace slugs with IDs. Throws not_found. */
async function withIds({ db }: KindDeps, given: readonly SharedWorkspace[]): Promise<SharedWorkspace[]> {
  const found: SharedWorkspace[] = [];
  for (const workspace of given) {
    const id = await findWorkspace(db, workspace.id);
    if (id === null) throw noSuchWorkspace(workspace.id, 'workspaces');
    found.push({ ...workspace, id });
  }
  return found;
}

/** The data of the event: the complete access of each named workspace. Budgets keep their last reset. */
function sharingOf(
  body: z.output<typeof SetWorkspacesRequest>,
  given: readonly SharedWorkspace[],
  { workspaces: before = {}, global_workspace_access: ofAll }: IntegrationData,
  now: string,
): { workspaces: Record<string, WorkspaceAccess>; global_workspace_access?: GlobalAccess; replaces?: true } {
  const workspaces = Object.fromEntries(
    given.map(({ id, enabled, usage_limits, rate_limits, reset_usage: resets }) => {
      const resetAt = resets === true ? now : before[id]?.usage_reset_at;
      // Limits that are left out keep their values.
      const wanted = asJson({
        enabled,
        usage_limits: storedLimits(usage_limits),
        rate_limits,
        usage_reset_at: resetAt,
      });
      return [id, { ...before[id], ...wanted } as WorkspaceAccess] as const;
    }),
  );
  const {
    global_workspace_access: wanted,
    override_existing_workspace_access: isReplacing,
    override_existing_workspaces_access: replaces = isReplacing,
    create_default_provider,
    default_provider_slug,
  } = body;
  const limits = wanted?.usage_limits === undefined ? {} : { usage_limits: storedLimits(wanted.usage_limits) };
  const forAll = wanted && { ...ofAll, ...wanted, ...limits, create_default_provider, default_provider_slug };
  return asJson({
    workspaces,
    ...(wanted === undefined ? {} : { global_workspace_access: (forAll ?? { enabled: false }) as GlobalAccess }),
    ...(replaces ? { replaces: true as const } : {}),
  });
}

/** Active workspaces without their own access, which therefore have the access of all workspaces. */
async function otherWorkspaces(
  { db }: KindDeps,
  named: ReadonlySet<string>,
  own: IntegrationData['workspaces'] = {},
): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from resource where kind = 'workspace' and deleted_at is null
    order by created_at limit ${integrationLimits.workspacesMax}`.execute(db);
  return rows.map(({ id }) => id).filter((id) => !named.has(id) && own[id] === undefined);
}

const modelsOf = ({ data }: ResourceRow<IntegrationData>) => {
  const models = Object.entries(data.models ?? {}).map(([slug, model]) => ({
    slug,
    name: model.name ?? slug,
    enabled: model.enabled,
    is_custom: model.is_custom ?? false,
    is_finetune: model.is_finetune ?? false,
    base_model_slug: model.base_model_slug ?? null,
    pricing_config: model.pricing_config ?? null,
  }));
  return { total: models.length, allow_all_models: data.allow_all_models ?? true, models };
};

/** A workspace only sees its own access. */
function workspacesOf(
  { data, workspace_id: owner, created_at: createdAt }: ResourceRow<IntegrationData>,
  workspaceId: string | null,
  nowMs: number,
) {
  const entries: [string, WorkspaceAccess][] =
    owner === organisationId ? Object.entries(data.workspaces ?? {}) : [[owner, { enabled: true }]];
  const workspaces = entries
    .filter(([id]) => workspaceId === null || id === workspaceId)
    .map(([id, access]) => ({ id, ...shownAccess(access, createdAt, nowMs) }));
  const ofAll = shownAccess(data.global_workspace_access, createdAt, nowMs);
  return { total: workspaces.length, workspaces, global_workspace_access: ofAll };
}

function refuseMore(count: number, max: number, what: string): void {
  if (count <= max) return;
  const message = `An integration can list at most ${max} ${what}, and this request would make it ${count}. Remove some first.`;
  throw new GatewayError('quota_exceeded', 'limit_exceeded', message, { param: what });
}

const ofOneWorkspace = (): GatewayError =>
  new GatewayError(
    'conflict',
    'integration_of_workspace',
    'This integration belongs to one workspace and cannot be shared. Create an integration of the organisation instead.',
    { param: 'slug' },
  );
