import { z } from 'zod';
import { anyObject, metadata, text } from '../scalars.ts';

/** Body of POST /configs/explain: a call as it would be sent, and the config that it would name. */
export const ExplainConfigRequest = z.strictObject({
  config: z
    .union([anyObject(), text({ min: 1, max: 65_536 })])
    .optional()
    .describe('the slug or id of a stored config, or a config itself; without it, that of the key'),
  endpoint: z
    .enum(['/v1/chat/completions', '/v1/completions', '/v1/embeddings'])
    .optional()
    .describe('default `/v1/chat/completions`'),
  body: anyObject().optional().describe('the body of the call, such as `{"model": "@openai/gpt-5"}`'),
  metadata: metadata().optional(),
});
export type ExplainConfigRequest = z.output<typeof ExplainConfigRequest>;

const Retry = z.object({
  attempts: z.int(),
  on_status_codes: z.array(z.int()).nullable().describe('null: the usual ones'),
});

/** Where one target's calls would go, and what happens around them. */
const TargetStep = z.object({
  kind: z.literal('target'),
  path: z.string().describe('its place in the config, as in `x-gateway-last-used-option-index`'),
  name: z.string().nullable(),
  provider: z.string().nullable(),
  virtual_key: z.string().nullable(),
  base_url: z.string().nullable(),
  model: z.string().nullable().describe('what the provider would be asked for'),
  prompt: z.string().nullable(),
  changes: z.array(z.string()).describe('members of the body that the config sets, adds or removes'),
  retry: Retry.nullable(),
  cache_seconds: z.int().nullable().describe('how old an answer from the cache may be; null: no cache'),
  has_breaker: z.boolean(),
  input_guardrails: z.array(z.string()),
  output_guardrails: z.array(z.string()),
  problem: z
    .object({ code: z.string().nullable(), message: z.string() })
    .nullable()
    .describe('why a call to it would be refused'),
});
export type TargetStep = z.output<typeof TargetStep>;

export type ExplainedStep =
  | TargetStep
  | { kind: 'fallback'; on_status_codes: number[] | null; options: ExplainedStep[] }
  | { kind: 'loadbalance'; options: { share: number; is_sticky: boolean; step: ExplainedStep }[] }
  | { kind: 'conditional'; conditions: { holds: boolean }[]; chosen: number | null; step: ExplainedStep };

export const ConfigExplanation = z.object({
  object: z.literal('config.explanation'),
  config: z
    .object({ id: z.string(), slug: z.string(), version: z.int() })
    .nullable()
    .describe('the stored config; null for one in the request, and without any'),
  steps: anyObject().describe(
    'what the call would do: a `target`, or a `fallback` (its `options` in their order), a `loadbalance` (`share` of each), ' +
      'a `conditional` (which `conditions` hold, and the `step` that follows)',
  ),
  text: z.array(z.string()).describe('the same in sentences'),
});
