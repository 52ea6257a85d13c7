import { z } from 'zod';
import { alertThreshold, creditLimit, rateUnits, RateLimitType, resetFields, UsageLimitType } from './limits.ts';
import { addBreach, integer, text } from '../scalars.ts';

/** The keys that a policy can use, in addition to every `metadata.<name>`. */
const policyKeys = ['api_key', 'virtual_key', 'provider', 'model', 'config', 'prompt', 'workspace_id'] as const;

const policyKey = () =>
  text({ min: 1, max: 80 }).check((context) => {
    const { value } = context;
    const isMetadata = value.startsWith('metadata.') && value.length > 'metadata.'.length;
    if (isMetadata || (policyKeys as readonly string[]).includes(value)) return;
    addBreach(context, {
      path: [],
      code: 'invalid_value',
      text: (name) => `Invalid ${name()}: expected ${policyKeys.join(', ')} or metadata.<name>.`,
    });
  });

const conditionsMax = 20;
const groupByMax = 5;

const policyFields = {
  name: text({ max: 255 }).nullish(),
  /** The policy applies to a call that meets all of them; `*` matches any value. */
  conditions: z.array(z.strictObject({ key: policyKey(), value: text({ min: 1, max: 512 }) })).max(conditionsMax),
  /** One counter for each combination of values. */
  group_by: z.array(z.strictObject({ key: policyKey() })).max(groupByMax),
  organisation_id: text({ min: 1, max: 200 }).optional(),
};

/** Members of the body of POST /policies/usage-limits; `credit_limit` in US cents or tokens. */
export const usageLimitPolicyFields = {
  ...policyFields,
  type: UsageLimitType,
  credit_limit: creditLimit().describe('US cents for the type `cost`, otherwise tokens.'),
  alert_threshold: alertThreshold().nullish(),
  ...resetFields,
};

/** Members of the body of POST /policies/rate-limits. 0 refuses every call. */
export const rateLimitPolicyFields = {
  ...policyFields,
  type: RateLimitType,
  unit: z.enum(rateUnits),
  value: integer({ min: 0, max: Number.MAX_SAFE_INTEGER }),
};

const PolicyStatus = z.enum(['active', 'archived']);

const policyObject = {
  id: z.string(),
  object: z.string(),
  name: z.string().nullable(),
  conditions: z.array(z.object({ key: z.string(), value: z.string() })),
  group_by: z.array(z.object({ key: z.string() })),
  status: PolicyStatus,
  workspace_id: z.string(),
  organisation_id: z.string(),
  created_at: z.string(),
  last_updated_at: z.string(),
};

/** A usage-limit policy in answers; times in ISO 8601. */
export const UsageLimitPolicyObject = z.object({
  ...policyObject,
  type: UsageLimitType,
  credit_limit: z.number().describe('US cents for the type `cost`, otherwise tokens.'),
  alert_threshold: z.number().nullable(),
  periodic_reset: z.enum(['monthly', 'weekly']).nullable(),
  periodic_reset_days: z.int().nullable(),
  next_usage_reset_at: z.string().nullable(),
  last_reset_at: z.string().nullable(),
  value_key_usage_map: z.record(z.string(), z.number()).optional(),
});

export const RateLimitPolicyObject = z.object({
  ...policyObject,
  type: RateLimitType,
  unit: z.enum(rateUnits),
  value: z.int(),
});

/** One counter of a usage-limit policy. */
export const PolicyEntityObject = z.object({
  id: z.string(),
  object: z.literal('policy-entity'),
  value_key: z.string(),
  current_usage: z.number(),
  unconfirmed_usage: z
    .number()
    .describe(
      'The part of current_usage that is reserved but not confirmed by an answer. It comes from calls whose answer was lost (the client disconnected, a timeout, a lost connection) and from processes that were killed.',
    ),
  unpriced_calls: z.int().describe('Calls whose cost is unknown. They are not part of current_usage.'),
  status: z.enum(['active', 'exhausted']),
  last_reset_at: z.string().nullable(),
});
