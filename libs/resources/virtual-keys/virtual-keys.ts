import { sql, type Kysely } from 'kysely';
import type { z } from 'zod';
import type { RateLimit, UsageLimit } from '#libs/contracts/people/limits.ts';
import { VirtualKeyObject, virtualKeyFields, virtualKeyUpdateFields } from '#libs/contracts/virtual-keys.ts';
import type { Database } from '#libs/database/schema.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import { defineKind, recordsLimit, type CheckContext } from '#libs/resources/define-kind.ts';
import type { Checked } from '#libs/records/kit.ts';
import { exhaustedRecords, rulesOfRow, shownLimits, storedLimits } from '#libs/resources/limits/own-limits.ts';
import { refusePastExpiry } from '#libs/resources/refuse-past-expiry.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { asJson, type ResourceRow } from '#libs/records/resource-row.ts';
import { shownDeployments } from '#libs/credentials/deployments.ts';
import { liveCredential, type LiveCredential, type StoredCredential } from '#libs/credentials/stored.ts';
import {
  checkChangedCredential,
  checkNewCredential,
  credentialKinds,
  credentialMember,
  shownSettings,
} from '#libs/resources/stored-credential.ts';
import { exampleProvider, mappingErrors } from '#libs/resources/kind-texts.ts';

export type VirtualKeyData = StoredCredential & {
  name: string;
  note: string | null;
  /** ISO 8601 with milliseconds, null for never. */
  expires_at: string | null;
  /** Absent if there are none (libs/contracts/people/limits.ts). */
  usage_limits?: UsageLimit | UsageLimit[] | null;
  rate_limits?: RateLimit[] | null;
  /** Usage before this time does not count towards `usage_limits`; ISO 8601. */
  usage_reset_at?: string;
};

type Input = Partial<z.output<z.ZodObject<typeof virtualKeyFields>>> & { reset_usage?: boolean };
type Context = CheckContext<VirtualKeyData>;

/**
 * A provider credential under a slug, with the provider's settings and address. The provider and the slug never change. An
 * expired key stays in the snapshot, so that its users get an error that says so. A deleted key is removed together with its
 * credential.
 */
export const virtualKeyKind = defineKind<typeof virtualKeyFields, VirtualKeyData, LiveCredential>({
  noun: 'virtual_key',
  idPrefix: 'vk_',
  area: 'virtual_keys',
  texts: {
    create: {
      description:
        'The credential is encrypted and never shown again. Calls use it as `@slug/model`. Virtual keys and ' +
        'providers share one set of slugs.',
      example: { name: 'Main', slug: 'main', provider: exampleProvider, key: 'sk-your-key' },
      errors: mappingErrors,
    },
    update: {
      description:
        'The next call uses the new credential, also in running batches. To change the host, send the credential ' +
        'again.',
      example: { note: 'Owned by the search team', rate_limits: [{ type: 'requests', unit: 'rpm', value: 600 }] },
      errors: { credential_required: 'the stored credential would be sent to another server', ...mappingErrors },
    },
    delete: { description: 'Deletes the credential, but running batches keep it until they end.' },
  },
  path: '/v1/virtual-keys',
  names: { one: 'virtual key', many: 'virtual keys', tag: 'Virtual keys', about: 'Stored credentials of providers.' },
  fields: virtualKeyFields,
  applied: {
    refersTo: { secret_reference: null },
    secrets: new RegExp(`^${credentialMember}$`),
    areCredentials: true,
  },
  changes: { immutable: ['provider'], fields: virtualKeyUpdateFields },
  slugs: { kinds: credentialKinds },
  creation: { limit: recordsLimit },

  check: (input, context) =>
    context.row === null ? checkNew(input, context) : checkChange(input, context, context.row.data),

  view: (row, nowMs) => {
    const { workspace_id, data, deleted_at } = row;
    return {
      name: data.name,
      workspace_id,
      provider: data.provider,
      ai_provider_name: data.provider,
      last_four: data.secret_last_four,
      custom_host: data.custom_host,
      note: data.note,
      status: deleted_at ? 'deleted' : expiryMs(data) <= nowMs ? 'expired' : 'active',
      settings: data.settings,
      model_config: shownSettings(data),
      ...(data.deployments?.length ? { deploymentConfig: shownDeployments(data.deployments) } : {}),
      secret_mappings: data.secret_mappings ?? [],
      usage_limits: shownLimits(data.usage_limits, row.created_at, nowMs),
      rate_limits: data.rate_limits ?? null,
      usage_reset_at: data.usage_reset_at ?? null,
      updated_at: row.updated_at.toISOString(),
      expires_at: data.expires_at,
    };
  },
  viewSchema: VirtualKeyObject,
  portkey: { data: ({ id, slug }) => ({ id, slug }) },

  async related(rows, { db, clock }) {
    const exhausted = await exhaustedRecords(db, rows.flatMap(rulesOf), clock.now());
    return ({ id, data, deleted_at: deletedAt }) =>
      exhausted.has(id) && deletedAt === null && expiryMs(data) > clock.now() ? { status: 'exhausted' } : {};
  },

  cached: {
    limits: rulesOf,
    toEntry: ({ id, workspace_id: workspaceId, slug, data }, secrets) => ({
      id,
      workspaceId,
      slug: slug ?? id,
      noun: 'virtual key',
      expiresAtMs: expiryMs(data),
      ...liveCredential(data, secrets, workspaceId),
    }),
  },
});

/** For commands that maintain virtual keys outside the routes. */
export const virtualKeyModel = resourceModel([virtualKeyKind]);

/** The budget and the rates of a virtual key. */
function rulesOf(row: ResourceRow<VirtualKeyData>): LimitRule[] {
  return rulesOfRow(row, { noun: 'virtual_key', label: `the virtual key '${row.slug ?? row.id}'`, of: 'credential' });
}

/**
 * The active virtual keys and providers of a workspace by slug, as they are now in the database. The slugs of deleted ones
 * can be used again.
 */
export async function listActiveCredentials(
  db: Kysely<Database>,
  workspaceId: string,
): Promise<{ id: string; slug: string; provider: string }[]> {
  const { rows } = await sql<{ id: string; slug: string; provider: string }>`
    select id, slug, coalesce(data ->> 'provider', data ->> 'ai_provider_id') as provider from resource
    where kind = any(${credentialKinds}::text[]) and workspace_id = ${workspaceId} and deleted_at is null order by slug`.execute(
    db,
  );
  return rows;
}

async function checkNew(input: Input, context: Context): Promise<Checked<VirtualKeyData>> {
  const { data, secrets } = await checkNewCredential(input, context, 'provider');
  refusePastExpiry(input.expires_at, context.unit.now);
  return {
    data: {
      name: input.name ?? '',
      note: input.note ?? null,
      expires_at: input.expires_at?.toISOString() ?? null,
      ...data,
      ...limitsOf(input),
    },
    secrets,
  };
}

/** Throws the errors of `checkChangedCredential`. */
async function checkChange(input: Input, context: Context, stored: VirtualKeyData): Promise<Checked<VirtualKeyData>> {
  const { data, ...secrets } = await checkChangedCredential(input, context, stored);
  return {
    data: {
      ...data,
      ...(input.name === undefined ? {} : { name: input.name }),
      ...(input.note === undefined ? {} : { note: input.note }),
      ...(input.expires_at === undefined ? {} : { expires_at: input.expires_at?.toISOString() ?? null }),
      ...limitsOf(input),
      ...(input.reset_usage === true ? { usage_reset_at: context.unit.now.toISOString() } : {}),
    },
    ...secrets,
  };
}

/** Only the members that the request names. */
const limitsOf = ({ usage_limits, rate_limits }: Input) =>
  asJson({ usage_limits: storedLimits(usage_limits), rate_limits }) as Pick<
    VirtualKeyData,
    'usage_limits' | 'rate_limits'
  >;

const expiryMs = ({ expires_at: expiresAt }: VirtualKeyData): number =>
  expiresAt === null ? Number.POSITIVE_INFINITY : Date.parse(expiresAt);
