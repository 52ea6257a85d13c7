/** The features of a Claude model on which requests depend. */
export type ClaudeModel = {
  /** Its maximum output: the `max_tokens` of requests that have none, because the API requires it. */
  outputTokensMax: number;
  /** `output_config.format` and strict tools. */
  structuredOutput: boolean;
  /** `output_config.effort`. */
  effort: boolean;
  /** `thinking: {type: 'adaptive'}`. */
  adaptiveThinking: boolean;
  /** How thinking is turned off: by leaving it out or by `{type: 'disabled'}`, or that it cannot be turned off. */
  withoutThinking: 'unsaid' | 'disabled' | 'impossible';
  /** Which of `temperature` and `top_p` are accepted: both, one of them, or (with `top_k`) none. */
  sampling: 'free' | 'one' | 'none';
};

const oldest: ClaudeModel = {
  outputTokensMax: 4_096,
  structuredOutput: false,
  effort: false,
  adaptiveThinking: false,
  withoutThinking: 'unsaid',
  sampling: 'free',
};
const newest: ClaudeModel = {
  outputTokensMax: 128_000,
  structuredOutput: true,
  effort: true,
  adaptiveThinking: true,
  withoutThinking: 'unsaid',
  sampling: 'none',
};

// The first match counts. Sources: platform.claude.com/docs "Models overview" (max output), "Structured outputs", "Effort",
// "Adaptive thinking", and the capability table of the AI SDK's Anthropic provider (November 2026). Matched anywhere in
// the id, because Bedrock and Vertex add a region, a vendor, a version or a date around the same names.
const models: readonly (readonly [RegExp, ClaudeModel])[] = [
  [/claude-[a-z]+-5-[1-9](?!\d)/, { ...newest, withoutThinking: 'impossible' }],
  [/claude-[a-z]+-5/, { ...newest, withoutThinking: 'disabled' }],
  [/claude-opus-4-[78]/, newest],
  [/claude-(opus|sonnet)-4-6/, { ...newest, sampling: 'one' }],
  [/claude-opus-4-5/, { ...oldest, outputTokensMax: 64_000, structuredOutput: true, effort: true, sampling: 'one' }],
  [/claude-(sonnet|haiku)-4-5/, { ...oldest, outputTokensMax: 64_000, structuredOutput: true, sampling: 'one' }],
  [/claude-opus-4-1/, { ...oldest, outputTokensMax: 32_000, structuredOutput: true, sampling: 'one' }],
  [/claude-opus-4/, { ...oldest, outputTokensMax: 32_000 }],
  [/claude-(sonnet-4|3-7-sonnet)/, { ...oldest, outputTokensMax: 64_000 }],
  [/claude-3-5-/, { ...oldest, outputTokensMax: 8_192 }],
  [/claude-(3|2|instant)/, oldest],
];

/** A model that is not in the table is newer: its parameters are sent unchanged, with 64,000 tokens. */
const unknown: ClaudeModel = { ...newest, outputTokensMax: 64_000, sampling: 'free' };

/** Returns the features of the model with this ID, on Anthropic's own API, Bedrock or Vertex AI. */
export function findClaudeModel(id: string): ClaudeModel {
  return models.find(([pattern]) => pattern.test(id))?.[1] ?? unknown;
}
