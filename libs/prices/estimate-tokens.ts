/** What a request is expected to use, before it is made. */
export type UsageEstimate = {
  /** Estimated from the size of the body: about four bytes per token. */
  inputTokens: number;
  /** The maximum that the request sets; null if it sets none. */
  outputTokensMax: number | null;
};

const bytesPerToken = 4;
const outputBounds = ['max_completion_tokens', 'max_tokens', 'max_output_tokens'];

/** Returns the most that a request with this body is expected to use. */
export function estimateTokens(bodyBytes: number, params: Readonly<Record<string, unknown>>): UsageEstimate {
  const bound = outputBounds.map((name) => params[name]).find((value) => typeof value === 'number');
  const choices = typeof params['n'] === 'number' ? params['n'] : 1;
  return {
    inputTokens: Math.ceil(bodyBytes / bytesPerToken),
    outputTokensMax: bound === undefined ? null : bound * choices,
  };
}

/** What a chat message costs beside its text: its role and what separates it from others. */
const tokensPerMessage = 4;

/**
 * Estimates the input of a request from its texts: about four characters per token. Closer than by its size, which counts
 * names and quotes too; images and audio count nothing, because what they cost is known to the provider alone.
 */
export function estimateInput(body: Readonly<Record<string, unknown>>): number {
  const { messages, input, prompt, instructions, tools } = body;
  const characters = [messages, input, prompt, instructions].reduce<number>((sum, each) => sum + lengthOf(each), 0);
  const schemas = Array.isArray(tools) ? JSON.stringify(tools).length : 0;
  const count = Array.isArray(messages) ? messages.length : 0;
  return Math.max(1, Math.ceil((characters + schemas) / bytesPerToken) + tokensPerMessage * count);
}

/** The characters of a text, of the texts in a list, or of those that the members of a message or part have. */
function lengthOf(value: unknown): number {
  if (typeof value === 'string') return value.length;
  if (Array.isArray(value)) {
    // Tokens instead of text.
    if (typeof value[0] === 'number') return value.length * bytesPerToken;
    let sum = 0;
    for (const each of value) sum += lengthOf(each);
    return sum;
  }
  if (typeof value !== 'object' || value === null) return 0;
  const { content, text, name, tool_calls: calls } = value as Record<string, unknown>;
  return lengthOf(content) + lengthOf(text) + lengthOf(name) + (calls === undefined ? 0 : JSON.stringify(calls).length);
}
