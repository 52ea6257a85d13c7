import { RE2JS } from 're2js';
import { z } from 'zod';
import { allowedNetworks } from './access-fields.ts';
import { guardrailLimits } from '../configs/guardrail-checks.ts';
import { rateLimits, usageLimits } from './limits.ts';
import { patternSize } from '../pattern-size.ts';
import { firstMembers, MemberObject } from './people.ts';
import { pricingAdjustments } from '../logs/prices.ts';
import { anyObject, decimal, metadata, text } from '../scalars.ts';

/** Guardrails, or names of stored ones. */
const list = () => z.array(z.union([text({ min: 1, max: 200 }), anyObject()])).max(guardrailLimits.guardrailsMax);

const names = () => z.array(text({ min: 1, max: 200 })).max(guardrailLimits.guardrailsMax);

const patternsMax = 20;
/** The maximum of all patterns together, because every body is searched for each of them. */
const patternSizeMax = 4_000;

const redactPatterns = () =>
  z
    .array(text({ min: 1, max: 200 }).refine(isPattern, { message: 'must be a regular expression in RE2 syntax' }))
    .max(patternsMax)
    .refine((rules) => rules.reduce((sum, rule) => sum + patternSize(rule), 0) <= patternSizeMax, {
      message: 'must be simpler, because all patterns are applied to every body. Shorten it, or use fewer repetitions',
    });

function isPattern(rule: string): boolean {
  try {
    RE2JS.compile(rule);
    return true;
  } catch {
    return false;
  }
}

const retentionDays = (text: string) =>
  z.int().min(1).max(3_650).nullish().describe(`${text} Null for the default of the installation.`);

/** Bodies of calls in the request log. */
export const recordingFields = () =>
  z.strictObject({
    bodies: z.boolean().describe('Whether requests and answers are recorded. A key can override it.'),
    redact: redactPatterns()
      .optional()
      .describe('RE2 patterns. Matching text is replaced by [redacted] before bodies are stored.'),
    retention_days: retentionDays('Days for which bodies are kept.'),
  });

/** The defaults for the calls of a workspace, which calls and their keys can override. */
const defaults = z.strictObject({
  /** The metadata of the key overrides it, and that of the call overrides both. */
  metadata: metadata().nullish(),
  /** It overrides the metadata of keys and calls, which cannot replace it. */
  locked_metadata: metadata().nullish(),
  /** Mandatory stored guardrails, by slug or ID. */
  input_guardrails: names().optional(),
  output_guardrails: names().optional(),
  /** The config of users' keys without their own config, by slug or ID. */
  user_api_key_config: text({ min: 1, max: 200 }).nullish(),
  recording: recordingFields().nullish(),
  hash_bodies: z
    .boolean()
    .nullish()
    .describe('Whether the request log has a salted SHA-256 of each request and answer. Default false.'),
  request_log_retention_days: retentionDays('Days for which records of calls are kept.'),
  results_retention_days: retentionDays('Days for which results of single batch lines are kept. Files keep them.'),
  /** Clients send answers back. */
  is_default: z.int().optional(),
  object: z.literal('workspace').optional(),
});

/** Members of the body of POST /admin/workspaces. */
export const workspaceFields = {
  name: text({ min: 1, max: 200 }),
  description: text({ max: 2_000 }).nullish(),
  defaults: defaults.nullish(),
  usage_limits: usageLimits().nullish(),
  rate_limits: rateLimits().nullish(),
  users: firstMembers().optional(),
  pricing_adjustments: pricingAdjustments().nullish(),
  allowed_networks: allowedNetworks().describe(
    'Networks that requests to the workspace can come from. Organisation keys are exempt. Null for any network.',
  ),
  batch_weight: decimal(0.1, 100)
    .optional()
    .describe(
      'The share of the workers that the batches of the workspace get while others have batches too, relative to their ' +
        'weights. Default 1.',
    ),
  legal_hold: z
    .strictObject({ active: z.boolean(), reason: text({ min: 1, max: 500 }) })
    .optional()
    .describe(
      'Sets (`active: true`) or lifts a legal hold. While it is active, nothing is deleted: call records, bodies, results, ' +
        'files, exports, feedback and the workspace stay. The log keeps the reason.',
    ),
};

/** A workspace in answers; times in ISO 8601. */
export const WorkspaceObject = z.object({
  id: z.string(),
  object: z.literal('workspace'),
  slug: z.string(),
  name: z.string(),
  description: z.string().nullable(),
  status: z.enum(['active', 'archived']),
  defaults: z
    .object({
      object: z.literal('workspace'),
      is_default: z.int(),
      metadata: anyObject().nullable(),
      locked_metadata: anyObject().nullable(),
      input_guardrails: names(),
      output_guardrails: names(),
      user_api_key_config: z.string().nullable(),
      recording: anyObject().nullable(),
      hash_bodies: z.boolean(),
      request_log_retention_days: z.int().nullable(),
      results_retention_days: z.int().nullable(),
    })
    .nullable(),
  usage_limits: z.array(anyObject()),
  rate_limits: z.array(anyObject()),
  /** Factors on listed prices, and own prices in cents per token, as decimals. */
  pricing_adjustments: anyObject().nullable(),
  allowed_networks: z.array(z.string()).nullable(),
  batch_weight: z.number(),
  /** The last one that was set or lifted; `since`: when, in ISO 8601. */
  legal_hold: z.object({ active: z.boolean(), reason: z.string(), since: z.string() }).nullable(),
  created_at: z.string(),
  last_updated_at: z.string(),
  /** Only for a single workspace: its newest members, a hundred at most. */
  users: z.array(MemberObject).optional(),
});

/** Body of PUT /admin/guardrails; each guardrail as in a config (libs/contracts/configs/guardrails.ts). An absent list is empty. */
export const SetGuardrailsRequest = z.strictObject({
  input_guardrails: list().default([]),
  output_guardrails: list().default([]),
});

export const GuardrailsObject = z.object({
  object: z.literal('workspace.guardrails'),
  input_guardrails: list(),
  output_guardrails: list(),
});
