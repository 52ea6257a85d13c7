import type { SecretMembers } from '#libs/secrets/secrets.ts';
import { readDocument, storeDocumentSecrets } from '#libs/credentials/configs/config-document.ts';
import { joinSecrets, redactSecrets } from '#libs/credentials/configs/config-secrets.ts';
import { compileStoredConfig } from '#libs/credentials/configs/read-config.ts';
import type { RateLimit, UsageLimit } from '#libs/contracts/people/limits.ts';
import { makeRecordRules } from '#libs/limits/limit-rule.ts';
import type { AddedGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import {
  GuardrailsObject,
  SetGuardrailsRequest,
  WorkspaceObject,
  workspaceFields,
  type recordingFields,
} from '#libs/contracts/people/workspaces.ts';
import { allowedNetworks } from '#libs/http/allowed-networks.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput } from '#libs/http/route.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import type { KeyDefaults } from '#libs/identity/live-callers.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import {
  compileAdjustments,
  type CompiledAdjustments,
  type PricingAdjustments,
  shownAdjustments,
} from '#libs/prices/adjustments.ts';
import { noSuchGuardrail } from '#libs/credentials/not-found.ts';
import { noSuchConfig } from '#libs/credentials/not-found.ts';
import { sql } from 'kysely';
import { z } from 'zod';
import type { firstMembers } from '#libs/contracts/people/people.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import { idOfName, ofWorkspaceOrShared } from '#libs/records/find-by-name.ts';
import { firstVirtualKey } from '#libs/resources/virtual-keys/kept-virtual-key.ts';
import { addMembers, endOfMemberships, memberRoutes, newestMembers } from './users/members.ts';
import { requireGuardrails } from '#libs/resources/guardrails.ts';
import { firstProviders } from '#libs/resources/integrations/providers.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { asJson } from '#libs/records/resource-row.ts';
import { retentionLock, underHold, type LegalHold } from './retention.ts';
import { peopleLock } from './users/users.ts';
import { shownLimits, storedLimits } from '#libs/resources/limits/own-limits.ts';

/** As their author wrote them, but without their secrets (libs/credentials/configs/config-secrets.ts). */
type GuardrailLists = { input_guardrails: unknown[]; output_guardrails: unknown[] };

/** Names the config and the guardrails by ID. */
type WorkspaceDefaults = {
  metadata?: Record<string, string> | null;
  locked_metadata?: Record<string, string> | null;
  input_guardrails?: string[];
  output_guardrails?: string[];
  user_api_key_config?: string | null;
  recording?: z.output<ReturnType<typeof recordingFields>> | null;
  hash_bodies?: boolean | null;
  request_log_retention_days?: number | null;
  results_retention_days?: number | null;
};

export type WorkspaceData = {
  name: string;
  description?: string | null;
  defaults?: WorkspaceDefaults | null;
  usage_limits?: UsageLimit[] | null;
  rate_limits?: RateLimit[] | null;
  pricing_adjustments?: PricingAdjustments | null;
  allowed_networks?: string[] | null;
  /** Absent: 1. */
  batch_weight?: number;
  /** Absent if there are none. */
  guardrails?: GuardrailLists;
  /** Absent if there never was one. */
  legal_hold?: LegalHold;
};

export type LiveWorkspace = {
  /**
   * Apply to every call; undefined if there are none, null if this process cannot read them (a newer release stored them).
   */
  readonly guardrails: AddedGuardrails | null | undefined;
  /** The defaults that its keys add to their calls; null if there are none. */
  readonly defaults: KeyDefaults | null;
  /** How the prices of its calls differ from the price table; null if they do not. */
  readonly prices: CompiledAdjustments | null;
};

const noGuardrails: GuardrailLists = { input_guardrails: [], output_guardrails: [] };
const guardrailsObject = 'workspace.guardrails';

/**
 * The unit of isolation: every other record belongs to a workspace. When it is deleted, its keys and everything else in it
 * can no longer be used. Only organisation keys can create, change and delete workspaces.
 */
export const workspaceKind = defineKind<typeof workspaceFields, WorkspaceData, LiveWorkspace>({
  noun: 'workspace',
  idPrefix: 'ws_',
  area: 'workspaces',
  texts: {
    create: {
      description: 'The new workspace starts empty. `users` become its first members.',
      example: { name: 'Search', defaults: { metadata: { department: 'search' } } },
    },
    update: {
      description:
        'Defaults, budgets and rates apply to all new calls of the workspace. Members of `defaults` that you leave ' +
        'out are kept. While `legal_hold` is active, nothing of the workspace is deleted.',
      example: { usage_limits: [{ type: 'cost', credit_limit: 100_000, periodic_reset: 'monthly' }] },
    },
    delete: {
      description:
        'Revokes the keys of the workspace, cancels its batches and deletes its recorded bodies. Its events are kept.',
      errors: {
        own_workspace: 'the key of the request belongs to this workspace',
        legal_hold: 'the workspace is under legal hold',
      },
    },
  },
  path: '/v1/admin/workspaces',
  names: { one: 'workspace', many: 'workspaces', tag: 'Workspaces', about: 'Workspaces own all other records.' },
  owner: 'itself',
  fields: workspaceFields,
  changes: { immutable: ['users'] },
  slugs: { areGlobal: true },
  removal: {
    archives: true,
    check({ id, slug, data }, caller) {
      if (data.legal_hold?.active === true) throw underHold([slug ?? id], 'so it cannot be deleted');
      if (id !== caller.workspaceId) return;
      const message =
        'The key of this request belongs to this workspace. Delete the workspace with a key of another workspace.';
      throw new GatewayError('conflict', 'own_workspace', message, { param: 'slug' });
    },
    also: endOfMemberships,
  },
  locks: [peopleLock, retentionLock],
  filters: {
    name: { schema: z.string().max(200), field: 'name', match: 'contains' },
    exact_name: { schema: z.string().max(200), field: 'name', match: 'equal' },
  },

  async check({ users: _users, defaults, ...fields }, { unit, workspaceId, row, setBatchWeight }) {
    if (fields.batch_weight !== undefined) await setBatchWeight(unit.tx, workspaceId, fields.batch_weight);
    const given = asJson(fields) as Partial<WorkspaceData>;
    if (given.usage_limits) given.usage_limits = storedLimits(given.usage_limits);
    if (fields.legal_hold !== undefined) {
      const { active, reason } = fields.legal_hold;
      const before = row?.data.legal_hold;
      const since = before?.active === active ? before.since : unit.now.toISOString();
      given.legal_hold = { active, reason, since };
    }
    if (defaults === undefined) return { data: given };
    if (defaults === null) return { data: { ...given, defaults } };
    const before = row?.data.defaults ?? {};
    return {
      data: asJson({ ...given, defaults: { ...before, ...(await checkDefaults(unit, workspaceId, defaults)) } }),
    };
  },

  creation: {
    also: {
      streams: async (input, ...place) => [
        ...((input['users'] ?? []) as FirstMember[]).map(({ id }) => id),
        ...(await firstVirtualKey.streams(input, ...place)),
        ...(await firstProviders.streams(input, ...place)),
      ],
      async run(unit, input, context) {
        const { row, caller, people } = context;
        await addMembers(unit, row.id, (input['users'] ?? []) as FirstMember[], { caller, people });
        await firstVirtualKey.run(unit, input, context);
        await firstProviders.run(unit, input, context);
      },
    },
  },

  history: {
    events: {
      data_deleted: (data) => data,
      // The complete new lists; empty lists remove all guardrails.
      guardrails_set({ guardrails: _before, ...rest }, { data }) {
        const document: GuardrailLists = data;
        const isNone = document.input_guardrails.length === 0 && document.output_guardrails.length === 0;
        return isNone ? rest : { ...rest, guardrails: document };
      },
    },
  },

  view: ({ slug, data, created_at, deleted_at }, nowMs) => ({
    name: data.name,
    description: data.description ?? null,
    status: deleted_at ? 'archived' : 'active',
    defaults: data.defaults
      ? {
          object: 'workspace',
          is_default: slug === firstWorkspaceSlug ? 1 : 0,
          metadata: data.defaults.metadata ?? null,
          locked_metadata: data.defaults.locked_metadata ?? null,
          input_guardrails: data.defaults.input_guardrails ?? [],
          output_guardrails: data.defaults.output_guardrails ?? [],
          user_api_key_config: data.defaults.user_api_key_config ?? null,
          recording: data.defaults.recording ?? null,
          hash_bodies: data.defaults.hash_bodies ?? false,
          request_log_retention_days: data.defaults.request_log_retention_days ?? null,
          results_retention_days: data.defaults.results_retention_days ?? null,
        }
      : null,
    usage_limits: shownLimits(data.usage_limits ?? [], created_at, nowMs),
    rate_limits: data.rate_limits ?? [],
    pricing_adjustments: shownAdjustments(data.pricing_adjustments),
    allowed_networks: data.allowed_networks ?? null,
    batch_weight: data.batch_weight ?? 1,
    legal_hold: data.legal_hold ?? null,
  }),
  viewSchema: WorkspaceObject,

  details: { read: async ({ id }, { db }) => ({ users: await newestMembers(db, id) }) },

  cached: {
    limits: ({ id, data, created_at: createdAt }) =>
      makeRecordRules(
        {
          id,
          noun: 'workspace',
          workspaceId: id,
          label: 'the workspace',
          createdAtMs: createdAt.getTime(),
          scope: { of: 'workspace' },
        },
        data,
      ),
    toEntry({ id, data }, secrets, { logger }) {
      const guardrails = guardrailsOf(data, secrets);
      if (guardrails === null) logger.error({ workspace_id: id }, 'the guardrails of a workspace cannot be read');
      const prices = data.pricing_adjustments ? compileAdjustments(data.pricing_adjustments) : null;
      return { guardrails, defaults: keyDefaultsOf(data), prices };
    },
  },

  routes: (store, { secrets, checkDestination, ...deps }, kit) => [
    ...memberRoutes({ ...deps, secrets, checkDestination }),
    {
      method: 'GET',
      path: '/v1/admin/guardrails',
      operationId: 'retrieveGuardrails',
      summary: 'Retrieve the guardrails of the workspace',
      description: 'Returns the guardrails that run for every call of the workspace, in addition to those of configs.',
      ...kit.read,
      responses: { 200: { description: 'Both lists, without secrets.', schema: GuardrailsObject } },
      handler: async (request, response) => {
        const { workspaceId } = getCaller(request);
        const { data } = await store.get({ workspaceId, name: workspaceId });
        response.json({ object: guardrailsObject, ...redactSecrets(data.guardrails ?? noGuardrails) });
      },
    },
    {
      method: 'PUT',
      path: '/v1/admin/guardrails',
      operationId: 'setGuardrails',
      summary: 'Set the enforced guardrails of the workspace',
      description:
        'Replaces both lists; a list that you leave out becomes empty. Calls in progress keep the previous guardrails.',
      example: { input_guardrails: [{ 'default.contains': { operator: 'none', words: ['password'] }, deny: true }] },
      ...kit.write,
      responses: { 200: { description: 'Both lists, without secrets.', schema: GuardrailsObject } },
      ...withInput({ body: SetGuardrailsRequest }, async ({ body }, request, response) => {
        // The lists have the same form and rules as those of a config.
        const judged = readDocument(body, 'guardrails', checkDestination);
        const { workspaceId } = getCaller(request);
        const owner = { workspaceId, ownerId: workspaceId };
        let open: object = noGuardrails;
        await store.change({ workspaceId, name: workspaceId }, toEventMetadata(request), async (unit) => {
          await requireGuardrails(unit, workspaceId, judged, 'guardrails');
          await secrets.removeOwned(unit, owner);
          const data = await storeDocumentSecrets(secrets, unit, owner, judged);
          open = data;
          return [{ type: 'workspace.guardrails_set', data }];
        });
        response.json({ object: guardrailsObject, ...open });
      }),
    },
  ],
});

type FirstMember = z.output<ReturnType<typeof firstMembers>>[number];

/** The workspace that the first start creates. */
export const firstWorkspaceSlug = 'default';

function keyDefaultsOf({ defaults, allowed_networks: texts }: WorkspaceData): KeyDefaults | null {
  const metadata = defaults?.metadata ?? null;
  const userConfigId = defaults?.user_api_key_config ?? null;
  const recording = defaults?.recording ?? null;
  const locked = defaults?.locked_metadata ?? null;
  const networks = allowedNetworks('workspace', texts);
  const hashesBodies = defaults?.hash_bodies === true ? true : null;
  const isEmpty = [metadata, locked, userConfigId, recording, networks, hashesBodies].every((added) => added === null);
  if (isEmpty) return null;
  const found: KeyDefaults = {
    metadata,
    userConfigId,
    ...(locked === null ? {} : { lockedMetadata: locked }),
    ...(networks === null ? {} : { networks }),
    ...(hashesBodies === null ? {} : { hashesBodies }),
  };
  if (recording === null) return found;
  const { bodies, redact = [], retention_days: days } = recording;
  const kept = { isOn: bodies, redact, ...(days == null ? {} : { retentionDays: days }) };
  return { ...found, recording: kept };
}

/**
 * Replaces names with IDs, because a slug can refer to another record later. Throws if the workspace does not have a record
 * with that name.
 */
/** The guardrails that were set for every call, and those that the defaults name. */
function guardrailsOf(
  { guardrails = noGuardrails, defaults }: WorkspaceData,
  secrets: SecretMembers | null,
): AddedGuardrails | null | undefined {
  const named = (ids: readonly string[] = []) => ids.map((stored) => ({ stored }));
  const [input, output] = [named(defaults?.input_guardrails), named(defaults?.output_guardrails)];
  if (guardrails === noGuardrails && input.length + output.length === 0) return undefined;
  const whole = secrets && joinSecrets(guardrails, secrets);
  const plan = whole && compileStoredConfig(whole);
  if (plan === null) return null;
  const [{ inputGuardrails, outputGuardrails }] = plan.leaves;
  return { inputGuardrails: [...inputGuardrails, ...input], outputGuardrails: [...outputGuardrails, ...output] };
}

async function checkDefaults(
  { tx }: Pick<UnitOfWork, 'tx'>,
  workspaceId: string,
  wanted: NonNullable<z.output<typeof workspaceFields.defaults>>,
): Promise<WorkspaceDefaults> {
  /** Records of the workspace take precedence over those of the organisation. */
  const idOf = async (kind: string, name: string): Promise<string | undefined> => {
    const id = idOfName(kind, name, ofWorkspaceOrShared(workspaceId));
    const { rows } = await sql<{ id: string | null }>`select ${id} as id`.execute(tx);
    return rows[0]?.id ?? undefined;
  };
  const { metadata, locked_metadata: locked, user_api_key_config: config } = wanted;
  const checked: WorkspaceDefaults = {
    ...(metadata === undefined ? {} : { metadata }),
    ...(locked === undefined ? {} : { locked_metadata: locked }),
  };
  for (const member of ['input_guardrails', 'output_guardrails'] as const) {
    const names = wanted[member];
    if (names === undefined) continue;
    checked[member] = await Promise.all(
      names.map(async (name) => (await idOf('guardrail', name)) ?? refuseGuardrail(name, `defaults.${member}`)),
    );
  }
  if (wanted.recording !== undefined) checked.recording = wanted.recording;
  for (const member of ['request_log_retention_days', 'results_retention_days'] as const)
    if (wanted[member] !== undefined) checked[member] = wanted[member];
  if (wanted.hash_bodies !== undefined) checked.hash_bodies = wanted.hash_bodies;
  if (config === null) checked.user_api_key_config = null;
  if (typeof config === 'string') {
    const id = await idOf('config', config);
    if (id === undefined) throw noSuchConfig(config, 'defaults.user_api_key_config');
    checked.user_api_key_config = id;
  }
  return checked;
}

function refuseGuardrail(name: string, param: string): never {
  throw noSuchGuardrail(name, param);
}

/** For commands that create workspaces outside the routes. */
export const workspaceModel = resourceModel([workspaceKind]);
