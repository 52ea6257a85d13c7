import { z } from 'zod';
import { relayAreas } from '#libs/providers/provider.ts';
import { allowedNetworks, timestamp } from './access-fields.ts';
import { keyRateLimits, usageLimit } from './limits.ts';
import { anyObject, integer, metadata, text } from '../scalars.ts';

const known = [
  'chat',
  'completions',
  'embeddings',
  'models',
  'batches',
  'files',
  'fine_tuning',
  'logs',
  'bodies',
  'analytics',
  'feedback',
  'audit',
  'members',
  ...relayAreas,
].flatMap(scopesOf);

function scopesOf(area: string): string[] {
  return [`${area}.read`, `${area}.write`];
}

/** Names of scopes: `<area>.<read|write>`. A key can be given those that a route of the route table has. */
export const scopes: readonly string[] = known;

/** Adds the scopes of a kind of record, as part of its definition. Several kinds can share an area. */
export function addScopes(area: string): void {
  if (!known.includes(`${area}.read`)) known.push(...scopesOf(area));
}

/** The maximum in a request. */
export const scopesMax = 200;

/** A scope in a request. Whether it exists is checked when the key is created (libs/http/rights.ts). */
export const ScopeText = z.string().min(1).max(100);

/** The owner of the key: the organisation, or a service (a program) or a user of a workspace. */
export const ApiKeyType = z.enum(['organisation-service', 'workspace-service', 'workspace-user']);
export type ApiKeyType = z.output<typeof ApiKeyType>;

/** Half an hour: long enough to bring a new key to a running program. */
const transitionMsMin = 1_800_000;
const transitionMsMax = 90 * 86_400_000;

/** How long the previous value of a key continues to work after a rotation. */
const transitionPeriod = () => integer({ min: transitionMsMin, max: transitionMsMax });

const rotationPolicy = () =>
  z.strictObject({
    rotation_period: z.enum(['weekly', 'monthly']).nullish(),
    /** Default: one period from now. */
    next_rotation_at: timestamp().nullish(),
    key_transition_period_ms: transitionPeriod().optional(),
  });

/** Members of the body of POST /api-keys. Without `scopes`, or with null, the key has all of them. */
export const apiKeyFields = {
  name: text({ min: 1, max: 200 }),
  description: text({ max: 2_000 }).nullish(),
  type: ApiKeyType.optional(),
  organisation_id: text({ min: 1, max: 200 }).optional(),
  user_id: text({ min: 1, max: 200 }).optional(),
  scopes: z.array(ScopeText).min(1).max(scopesMax).nullish(),
  expires_at: timestamp().nullish(),
  defaults: z
    .strictObject({
      config_id: text({ min: 1, max: 200 }).nullish(),
      metadata: metadata().nullish(),
      /** Like `metadata`, but a request cannot replace it. */
      locked_metadata: metadata().nullish(),
      /** false: requests with the key use `config_id`, and must not send a config or an option of one. */
      allow_config_override: z.boolean().optional(),
      /** Whether requests and answers are recorded in the request log; null: the setting of the workspace applies. */
      record_bodies: z.boolean().nullish(),
    })
    .optional(),
  usage_limits: usageLimit().nullish(),
  rate_limits: keyRateLimits().nullish(),
  alert_emails: z.array(z.email().max(320)).max(20).nullish(),
  rotation_policy: rotationPolicy().nullish(),
  allowed_networks: allowedNetworks().describe(
    'Networks that requests with the key can come from. Null for any network.',
  ),
};

/** Members of PUT only. `reset_usage`: the use of the current period restarts at 0. */
export const apiKeyUpdateFields = { reset_usage: z.boolean().optional() };

/** Path of POST /api-keys/{type}/{sub-type}. The organisation has no keys of users. */
export const ApiKeyPath = z.object({
  type: z.enum(['organisation', 'workspace']),
  sub_type: z.enum(['service', 'user']),
});

/** Body of POST /api-keys/{id}/rotate. 0: previous values end immediately, for a key that was leaked. */
export const RotateApiKeyRequest = z
  .strictObject({
    key_transition_period_ms: z.union([z.literal(0), transitionPeriod()]).optional(),
  })
  .optional();

/** The new value, which is shown once. The previous one works until `key_transition_expires_at`. */
export const RotatedApiKey = z.object({
  id: z.string(),
  object: z.literal('api-key'),
  key: z.string(),
  key_transition_expires_at: z.iso.datetime(),
  made_with_previous: z
    .object({
      api_keys: z.array(z.object({ id: z.string(), name: z.string(), workspace_id: z.string() })),
      users: z.array(z.object({ id: z.string(), email: z.string() })),
      invites: z.array(z.object({ id: z.string(), email: z.string(), cancelled: z.boolean() })),
      has_more: z.boolean().describe('Whether one of the lists is cut off after 100 items.'),
    })
    .describe(
      'Keys, users and pending invites that earlier values of the key created and that still work. A rotation without a transition cancels these invites. Check the list if an earlier value may have been stolen.',
    ),
});

/** Body of POST /api-keys/leaked: the whole value is the proof, so only someone who has it can revoke it. */
export const LeakedKeyRequest = z.strictObject({
  key: z.string().max(100),
  url: z.url().max(2_048).optional().describe('Where the key was found.'),
});

export const LeakedKeyReport = z.object({ object: z.literal('leaked-key-report'), status: z.literal('accepted') });

const time = () => z.iso.datetime();

/** A key as lists show it: only the last four characters of its value. Times in ISO 8601. */
export const ApiKeyObject = z.object({
  id: z.string(),
  object: z.literal('api-key'),
  key: z.string(),
  name: z.string(),
  description: z.string().nullable(),
  type: ApiKeyType,
  organisation_id: z.string(),
  workspace_id: z.string(),
  user_id: z.string().nullable(),
  creation_mode: z.enum(['api', 'auto']),
  scopes: z.array(z.string()).nullable(),
  last_four: z.string(),
  /** `exhausted`: its budget is used up in this period. */
  status: z.enum(['active', 'exhausted', 'expired']),
  defaults: z.object({
    config_id: z.string().nullable(),
    metadata: z.record(z.string(), z.string()).nullable(),
    locked_metadata: z.record(z.string(), z.string()).nullable(),
    allow_config_override: z.boolean(),
    record_bodies: z.boolean().nullable(),
  }),
  usage_limits: usageLimit().nullable(),
  rate_limits: z.array(anyObject()).nullable(),
  usage_reset_at: time().nullable(),
  alert_emails: z.array(z.string()).nullable(),
  rotation_policy: z
    .object({
      rotation_period: z.enum(['weekly', 'monthly']).nullable(),
      next_rotation_at: time().nullable(),
      key_transition_period_ms: z.int(),
    })
    .nullable(),
  allowed_networks: z.array(z.string()).nullable(),
  /** The time since which a rotation of the key is overdue. */
  rotation_due_at: time().nullable(),
  /** How long the previous value still works. */
  key_transition_expires_at: time().nullable(),
  created_at: time(),
  last_updated_at: time(),
  expires_at: time().nullable(),
});
