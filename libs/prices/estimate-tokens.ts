/** The expected use of a request, before it is made. */
export type UsageEstimate = {
  /** Estimated from the size of the body: about four bytes per token. */
  inputTokens: number;
  /** The maximum that the request sets for all of its choices together; null if it sets none. */
  outputTokensMax: number | null;
  /** How many answers are generated, at least 1. */
  choices: number;
};

const bytesPerToken = 4;
/** Above every model's limit. Estimates stay below it, whatever numbers a request has. */
const estimateMax = 1_000_000_000;

const responseBounds = ['max_output_tokens'];
const chatBounds = ['max_completion_tokens', 'max_tokens'];
const choiceBounds = ['n', 'best_of'];
/** Google's members that contain the bounds of a request, in both spellings. */
const configNames = ['generationConfig', 'generation_config'];
const configBounds = ['maxOutputTokens', 'max_output_tokens'];
const configChoices = ['candidateCount', 'candidate_count'];

/** The input of a run without a bound. */
const threadTokens = 1_000;

/** The members of a body that `estimateTokens` reads. */
export const estimatedMembers: readonly string[] = [
  ...responseBounds,
  ...chatBounds,
  ...choiceBounds,
  ...configNames,
  'prompt',
];

/** Limits an estimate to the range from 0 to `estimateMax`. */
export const clampEstimate = (tokens: number): number => (tokens > 0 ? Math.min(Math.ceil(tokens), estimateMax) : 0);

/**
 * Returns the maximum that a request with these parameters is expected to use. If there are several bounds, the largest
 * counts, because the provider can choose any of them. A bound below 1 is ignored, and so is one that the operation does not
 * have, because the provider can ignore it too.
 */
export function estimateTokens(
  bodyBytes: number,
  params: Readonly<Record<string, unknown>>,
  operation: string,
): UsageEstimate {
  const configs = operation === 'generate_content' ? configNames.map((name) => toMembers(params[name])) : [];
  const inConfig = (names: readonly string[]): number =>
    Math.max(0, ...configs.map((config) => largest(config, names)));
  // The larger one: a client could send a small one where its provider does not look.
  const own = largest(params, operation === 'responses' ? responseBounds : chatBounds);
  const bound = Math.max(own, inConfig(configBounds));
  const { prompt } = params;
  // A list of texts is answered one by one; a list of numbers is one text in tokens.
  const prompts = Array.isArray(prompt) && typeof prompt[0] !== 'number' ? prompt.length : 1;
  const choices = clampEstimate(
    Math.max(1, largest(params, choiceBounds), inConfig(configChoices)) * Math.max(1, prompts),
  );
  // A run reads its thread, which its body only names.
  const stored = operation === 'threads' ? largest(params, ['max_prompt_tokens']) || threadTokens : 0;
  return {
    inputTokens: clampEstimate(bodyBytes / bytesPerToken + stored),
    outputTokensMax: bound === 0 ? null : clampEstimate(bound * choices),
    choices,
  };
}

const toMembers = (value: unknown): Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};

/** 0: none of the members is a number of at least 1. */
function largest(params: Readonly<Record<string, unknown>>, names: readonly string[]): number {
  let found = 0;
  for (const name of names) {
    const value = params[name];
    if (typeof value === 'number' && value >= 1 && value > found) found = value;
  }
  return found;
}

/** The cost of a chat message in addition to its text: its role, and the separators. */
const tokensPerMessage = 4;

/**
 * Estimates the input of a request from its texts: about four characters per token. This is more precise than the size
 * of the body, which includes names and quotes. Images and audio count as 0, because only the provider knows their
 * cost.
 */
export function estimateInput(body: Readonly<Record<string, unknown>>): number {
  const { messages, input, prompt, instructions, tools } = body;
  const characters = [messages, input, prompt, instructions].reduce<number>((sum, each) => sum + lengthOf(each), 0);
  const schemas = Array.isArray(tools) ? JSON.stringify(tools).length : 0;
  const count = Array.isArray(messages) ? messages.length : 0;
  return Math.max(1, Math.ceil((characters + schemas) / bytesPerToken) + tokensPerMessage * count);
}

/** The number of characters of a text, of the texts in a list, or of the members of a message or part. */
function lengthOf(value: unknown): number {
  if (typeof value === 'string') return value.length;
  if (Array.isArray(value)) {
    // It contains tokens instead of text.
    if (typeof value[0] === 'number') return value.length * bytesPerToken;
    let sum = 0;
    for (const each of value) sum += lengthOf(each);
    return sum;
  }
  if (typeof value !== 'object' || value === null) return 0;
  const { content, text, name, tool_calls: calls } = value as Record<string, unknown>;
  return lengthOf(content) + lengthOf(text) + lengthOf(name) + (calls === undefined ? 0 : JSON.stringify(calls).length);
}
