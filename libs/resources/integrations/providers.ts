import { sql } from 'kysely';
import type { z } from 'zod';
import { ProviderObject, providerFields, providerUpdateFields } from '#libs/contracts/integrations.ts';
import type { RateLimit, UsageLimit } from '#libs/contracts/people/limits.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import {
  defineKind,
  recordsLimit,
  type CheckContext,
  type FollowUp,
  type KindDeps,
} from '#libs/resources/define-kind.ts';
import type { Checked } from '#libs/records/kit.ts';
import { exhaustedRecords, rulesOfRow, shownLimits, storedLimits } from '#libs/resources/limits/own-limits.ts';
import { idOfName } from '#libs/records/find-by-name.ts';
import { accessOf, isSharedWith, type IntegrationData, type LiveIntegration } from './integration-data.ts';
import { refusePastExpiry } from '#libs/resources/refuse-past-expiry.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { asJson, type ResourceRow } from '#libs/records/resource-row.ts';
import { freeSlug, slugLock } from '#libs/records/traits/slugs.ts';
import type { LiveCredential } from '#libs/credentials/stored.ts';
import { credentialKinds } from '#libs/resources/stored-credential.ts';

type ProviderData = {
  name: string;
  /** The integration's ID, which never changes. */
  integration_id: string;
  /** The provider of the integration, which never changes either. */
  ai_provider_id: string;
  note: string | null;
  usage_limits: UsageLimit | null;
  rate_limits: RateLimit[] | null;
  /** ISO 8601, null for never. */
  expires_at: string | null;
  /** When the usage of its budget was last reset manually; ISO 8601. */
  usage_reset_at?: string;
};

export type LiveProvider = {
  readonly id: string;
  readonly slug: string;
  readonly workspaceId: string;
  readonly integrationId: string;
  readonly aiProviderId: string;
  readonly expiresAtMs: number;
};

export const providerIdPrefix = 'pro_';

type Input = Partial<z.output<z.ZodObject<typeof providerFields>>> & { reset_usage?: boolean };

/** A workspace's use of an integration, under a slug. Calls can name a provider wherever they can name a virtual key. */
export const providerKind = defineKind<typeof providerFields, ProviderData, LiveProvider>({
  noun: 'provider',
  idPrefix: providerIdPrefix,
  area: 'providers',
  texts: {
    create: {
      description:
        'Adds an integration to the workspace, with a slug, budgets and rates. Calls name it as `@slug/model`.',
      example: { name: 'Search', integration_id: 'company-account' },
      errors: { integration_not_found: 'the integration does not exist or is not shared with the workspace' },
    },
    update: {
      description: '`reset_usage` restarts the budget.',
      example: { rate_limits: [{ type: 'requests', unit: 'rpm', value: 600 }] },
    },
  },
  path: '/v1/providers',
  names: {
    one: 'provider',
    many: 'providers',
    tag: 'Providers',
    about: 'The integrations that a workspace uses, with their budgets and rates.',
  },
  fields: providerFields,
  applied: { refersTo: { integration: 'integration_id' } },
  changes: { immutable: ['integration_id'], fields: providerUpdateFields },
  slugs: { kinds: credentialKinds },
  creation: { limit: recordsLimit },

  async check(input: Input, context): Promise<Checked<ProviderData>> {
    const { reset_usage: resets, integration_id: integration, ...fields } = input;
    const { row, unit } = context;
    const given = asJson({ ...fields, usage_limits: storedLimits(fields.usage_limits) }) as Partial<ProviderData>;
    if (row !== null) {
      return { data: { ...given, ...(resets === true ? { usage_reset_at: unit.now.toISOString() } : {}) } };
    }
    refusePastExpiry(input.expires_at, unit.now);
    const found = await integrationOf(context, integration ?? '');
    return { data: { ...emptyProvider, ...given, integration_id: found.id, ai_provider_id: found.data.provider } };
  },

  view(row, nowMs) {
    const { workspace_id, data, deleted_at } = row;
    return {
      name: data.name,
      workspace_id,
      integration_id: data.integration_id,
      ai_provider_id: data.ai_provider_id,
      note: data.note,
      status: deleted_at ? 'deleted' : expiryMs(data) <= nowMs ? 'expired' : 'active',
      usage_limits: shownLimits(data.usage_limits, row.created_at, nowMs),
      rate_limits: data.rate_limits,
      reset_usage: null,
      expires_at: data.expires_at,
    };
  },
  viewSchema: ProviderObject,

  async related(rows, { db, clock }) {
    const exhausted = await exhaustedRecords(db, rows.flatMap(rulesOf), clock.now());
    const blocked = await blockedProviders(db, rows);
    return ({ id, data, deleted_at: deletedAt }) => {
      if (deletedAt !== null || expiryMs(data) <= clock.now()) return {};
      const status = blocked.get(id) ?? (exhausted.has(id) ? 'exhausted' : undefined);
      return status === undefined ? {} : { status };
    };
  },

  cached: {
    limits: rulesOf,
    toEntry: ({ id, slug, workspace_id: workspaceId, data }) => ({
      id,
      slug: slug ?? id,
      workspaceId,
      integrationId: data.integration_id,
      aiProviderId: data.ai_provider_id,
      expiresAtMs: expiryMs(data),
    }),
  },
});

/** The budget and the rates of a provider. */
function rulesOf(row: ResourceRow<ProviderData>): LimitRule[] {
  return rulesOfRow(row, { noun: 'provider', label: `the provider '${row.slug ?? row.id}'`, of: 'credential' });
}

/** Returns the providers that cannot be called because of their integration, each with the error code for such calls. */
async function blockedProviders(
  db: KindDeps['db'],
  rows: readonly ResourceRow<ProviderData>[],
): Promise<Map<string, NonNullable<LiveCredential['blocked']>>> {
  const ids = [...new Set(rows.map(({ data }) => data.integration_id))];
  if (ids.length === 0) return new Map();
  const { rows: found } = await sql<{ id: string; ownerId: string; access: LiveIntegration['access'] }>`
    select id, workspace_id as "ownerId", jsonb_build_object('workspaces', coalesce(data -> 'workspaces', '{}'),
      'global_workspace_access', coalesce(data -> 'global_workspace_access', '{"enabled": false}')) as access
    from resource where kind = 'integration' and deleted_at is null and id = any(${ids}::text[])`.execute(db);
  const integrations = new Map(found.map((integration) => [integration.id, integration]));
  const blocked = new Map<string, NonNullable<LiveCredential['blocked']>>();
  for (const { id, workspace_id: workspaceId, data } of rows) {
    const integration = integrations.get(data.integration_id);
    if (integration === undefined) blocked.set(id, 'integration_deleted');
    else if (!accessOf(integration, workspaceId).enabled) blocked.set(id, 'integration_not_shared');
  }
  return blocked;
}

const emptyProvider = { note: null, usage_limits: null, rate_limits: null, expires_at: null };
const model = resourceModel([providerKind]);

const expiryMs = ({ expires_at: expiresAt }: ProviderData): number =>
  expiresAt === null ? Number.POSITIVE_INFINITY : Date.parse(expiresAt);

type IntegrationRow = Pick<ResourceRow<IntegrationData>, 'id' | 'slug' | 'data' | 'workspace_id'>;

/** An integration that the workspace can use, by slug or ID. Throws invalid_request. */
async function integrationOf(
  { unit, workspaceId }: Pick<CheckContext<ProviderData>, 'unit' | 'workspaceId'>,
  name: string,
): Promise<IntegrationRow> {
  const isUsable = sql`(workspace_id = ${workspaceId}
    or (workspace_id = ${organisationId} and ${isSharedWith(workspaceId)}))`;
  const { rows } = await sql<IntegrationRow>`
    select id, slug, workspace_id, data from resource where id = ${idOfName('integration', name, isUsable)}`.execute(
    unit.tx,
  );
  if (rows[0]) return rows[0];
  const message = `There is no integration '${name.slice(0, 100)}' that this workspace can use. GET /v1/integrations lists those that it can use. An organisation key can share more.`;
  throw new GatewayError('invalid_request', 'integration_not_found', message, { param: 'integration_id' });
}

/**
 * Adds the provider that a workspace gets with an integration, unless the workspace already has a provider for it. `id` is
 * the ID of the new provider. Without a wanted slug, it gets one derived from `name`, by default the slug of the
 * integration. The caller must hold the lock for the workspace's credential slugs. Throws conflict for a slug that is taken.
 */
export async function addDefaultProvider(
  unit: UnitOfWork,
  id: string,
  wanted: { integration: IntegrationRow; slug: string | undefined; name?: string | undefined; workspaceId?: string },
): Promise<void> {
  const { integration, workspaceId = integration.workspace_id } = wanted;
  const slugOrId = integration.slug ?? integration.id;
  const { rows } = await sql`
    select from resource where kind = 'provider' and workspace_id = ${workspaceId} and deleted_at is null
      and data ->> 'integration_id' = ${integration.id} limit 1`.execute(unit.tx);
  if (rows.length > 0) return;
  const place = { kinds: credentialKinds, kind: 'provider', one: 'provider', workspaceId, ofAll: false };
  const slug = await freeSlug(unit, place, { slug: wanted.slug, name: wanted.name ?? slugOrId });
  const { name, provider } = integration.data;
  const data = { ...emptyProvider, slug, name, integration_id: integration.id, ai_provider_id: provider };
  await unit.append(model, id, [{ type: 'provider.created', data }]);
  await announceAccessChange(unit);
}

/**
 * Held while integrations are changed and workspaces are created. If an integration is shared with all workspaces while a
 * workspace is being created, one of the two operations therefore sees the other's result.
 */
export const sharingLock = 'integration_sharing';

const firstProvidersMax = 100;

/** Gives a new workspace providers for the integrations that are shared with all workspaces; at most for the 100 oldest. */
export const firstProviders: FollowUp<object, unknown> = {
  streams: (_input, _deps, workspaceId) => [
    sharingLock,
    slugLock(workspaceId, credentialKinds[0]),
    ...Array.from({ length: firstProvidersMax }, () => newId(providerIdPrefix)),
  ],
  async run(unit, _input, { row, locked }) {
    const { rows } = await sql<IntegrationRow>`
      select id, slug, workspace_id, data from resource
      where kind = 'integration' and deleted_at is null and workspace_id = ${organisationId}
        and ${isSharedWith(row.id)} and coalesce((data -> 'global_workspace_access' ->> 'create_default_provider')::boolean, true)
      order by created_at, id limit ${firstProvidersMax}`.execute(unit.tx);
    const ids = locked.filter((stream) => stream.startsWith(providerIdPrefix));
    for (const [index, integration] of rows.entries()) {
      const id = ids[index];
      // If two integrations want the same slug, one of them gets another slug, so that the workspace can still be created.
      const name = integration.data.global_workspace_access?.default_provider_slug;
      if (id !== undefined)
        await addDefaultProvider(unit, id, { integration, slug: undefined, name, workspaceId: row.id });
    }
  },
};

/**
 * Like `addDefaultProvider`, for several workspaces, each in its own transaction: a repeated call continues where the last
 * one stopped.
 */
export async function addDefaultProviders(
  { eventLog }: Pick<KindDeps, 'eventLog'>,
  metadata: EventMetadata,
  integration: IntegrationRow,
  workspaces: readonly { workspaceId: string; slug: string | undefined }[],
): Promise<void> {
  for (const { workspaceId, slug } of workspaces) {
    const id = newId(providerIdPrefix);
    const streams = [slugLock(workspaceId, credentialKinds[0]), id];
    await eventLog.transact({ workspaceId, streams, metadata }, (unit) =>
      addDefaultProvider(unit, id, { integration, slug, workspaceId }),
    );
  }
}
