import { z } from 'zod';
import { anyObject, metadata, text } from '../scalars.ts';

/** Body of POST /configs/explain: a call as it would be sent, with the config that it would name. */
export const ExplainConfigRequest = z.strictObject({
  config: z
    .union([anyObject(), text({ min: 1, max: 65_536 })])
    .optional()
    .describe('The slug or ID of a stored config, or a config as an object. Default: the config of the key.'),
  endpoint: z
    .enum(['/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/messages', '/v1/responses'])
    .optional()
    .describe('Default: `/v1/chat/completions`.'),
  body: anyObject().optional().describe('The body of the call, such as `{"model": "@openai/gpt-5"}`.'),
  metadata: metadata().optional(),
});
export type ExplainConfigRequest = z.output<typeof ExplainConfigRequest>;

const Retry = z.object({
  attempts: z.int(),
  on_status_codes: z.array(z.int()).nullable().describe('Null for the default statuses.'),
});

/** Where one target's calls would go, and the steps around them. */
const TargetStep = z.object({
  kind: z.literal('target'),
  path: z.string().describe('Its path in the config, as in `x-gateway-last-used-option-index`.'),
  name: z.string().nullable(),
  provider: z.string().nullable(),
  virtual_key: z.string().nullable(),
  base_url: z.string().nullable(),
  model: z.string().nullable().describe('The model that would be requested from the provider.'),
  prompt: z.string().nullable(),
  changes: z.array(z.string()).describe('Body parameters that the config sets, adds or removes.'),
  retry: Retry.nullable(),
  cache_seconds: z.int().nullable().describe('The maximum age of a cached answer. Null if there is no cache.'),
  has_breaker: z.boolean(),
  cache_breakpoints: z.boolean(),
  input_guardrails: z.array(z.string()),
  output_guardrails: z.array(z.string()),
  problem: z
    .object({ code: z.string().nullable(), message: z.string() })
    .nullable()
    .describe('Why a call to this target would be rejected.'),
});
export type TargetStep = z.output<typeof TargetStep>;

export type ExplainedStep =
  | TargetStep
  | { kind: 'fallback'; on_status_codes: number[] | null; continue_streams: boolean; options: ExplainedStep[] }
  | { kind: 'loadbalance'; options: { share: number; is_sticky: boolean; step: ExplainedStep }[] }
  | { kind: 'conditional'; conditions: { holds: boolean }[]; chosen: number | null; step: ExplainedStep };

export const ConfigExplanation = z.object({
  object: z.literal('config.explanation'),
  config: z
    .object({ id: z.string(), slug: z.string(), version: z.int() })
    .nullable()
    .describe('The stored config. Null if the config was sent in the request or there is none.'),
  steps: anyObject().describe(
    'What the call would do: a `target`, a `fallback` (its `options` in order), a `loadbalance` (the `share` of each option) or a `conditional` (which `conditions` match, and the next `step`).',
  ),
  text: z.array(z.string()).describe('The steps in sentences.'),
});
