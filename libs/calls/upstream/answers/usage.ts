import { readServiceTier, type Usage, type UsageDetails } from '#libs/prices/usage.ts';

/** Returns the members of a JSON object; none for anything else. */
export function asRecord(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

/**
 * Returns usage as OpenAI writes it, from a body or a chunk; null when there is none. Absurd counts become 0. `tier` is
 * the neighbouring `service_tier`.
 */
export function readUsage(usage: unknown, tier?: unknown): Usage | null {
  if (typeof usage !== 'object' || usage === null) return null;
  const {
    prompt_tokens: input,
    completion_tokens: output,
    total_tokens: total,
    prompt_tokens_details,
    completion_tokens_details,
  } = asRecord(usage);
  if (typeof input !== 'number' && typeof output !== 'number') return null;
  const ofInput = asRecord(prompt_tokens_details);
  const ofOutput = asRecord(completion_tokens_details);
  const reasoningTokens = count(ofOutput['reasoning_tokens']);
  const [inputTokens, counted] = [count(input), count(output)];
  // xAI counts reasoning in addition to the output, which only its total shows.
  const isBeside = reasoningTokens > 0 && total === inputTokens + counted + reasoningTokens;
  const read: Usage = {
    inputTokens,
    cachedTokens: count(ofInput['cached_tokens']),
    outputTokens: isBeside ? counted + reasoningTokens : counted,
    reasoningTokens,
  };
  // These figures are rare. Without them, nearly all calls have an object of four numbers.
  for (const [name, member] of inputDetails) addCount(read, name, ofInput[member]);
  for (const [name, member] of outputDetails) addCount(read, name, ofOutput[member]);
  return Object.assign(read, readServiceTier(tier));
}

type CountedDetail = Exclude<keyof UsageDetails, 'serviceTier' | 'isImplausible'>;

const inputDetails: readonly [CountedDetail, string][] = [
  ['audioInputTokens', 'audio_tokens'],
  ['imageInputTokens', 'image_tokens'],
  ['cacheWriteTokens', 'cache_write_tokens'], // OpenRouter's name.
];
const outputDetails: readonly [CountedDetail, string][] = [
  ['audioOutputTokens', 'audio_tokens'],
  ['imageOutputTokens', 'image_tokens'],
];

function addCount(usage: Usage, name: CountedDetail, value: unknown): void {
  const found = value === undefined ? 0 : count(value);
  if (found > 0) usage[name] = found;
}

/** Usage with the names that the Responses, images and audio APIs use. */
function readTokenUsage(usage: unknown, tier?: unknown): Usage | null {
  const {
    input_tokens,
    output_tokens,
    input_tokens_details,
    input_token_details,
    output_tokens_details,
    total_tokens,
  } = asRecord(usage);
  return readUsage(
    {
      prompt_tokens: input_tokens,
      completion_tokens: output_tokens,
      total_tokens,
      prompt_tokens_details: input_tokens_details ?? input_token_details,
      completion_tokens_details: output_tokens_details,
    },
    tier,
  );
}

/** Usage of an answer or an event with either set of names, and the web searches that a response has made. */
export function readAnswerUsage({
  usage,
  service_tier: tier,
  output,
}: Readonly<Record<string, unknown>>): Usage | null {
  const read = readUsage(usage, tier) ?? readTokenUsage(usage, tier);
  if (read === null || !Array.isArray(output)) return read;
  const searches = output.filter((item) => asRecord(item)['type'] === 'web_search_call').length;
  if (searches > 0) read.searches = searches;
  return read;
}

/** Returns the sum of both. An unknown figure counts as 0. */
export function addUsage(one: Usage | null, other: Usage | null): Usage | null {
  if (one === null || other === null) return one ?? other;
  const sum: Usage = { ...one };
  const added: Readonly<Record<string, unknown>> = other;
  for (const name of Object.keys(other) as (keyof Usage)[]) {
    if (name === 'isImplausible') sum[name] = true;
    else if (name !== 'serviceTier') sum[name] = (one[name] ?? 0) + count(added[name]);
  }
  return sum;
}

function count(value: unknown): number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : 0;
}

/** The finish reason of the first choice of a body. */
export function readFinishReason(choices: unknown): string | null {
  const reason = Array.isArray(choices) ? asRecord(choices[0])['finish_reason'] : null;
  return typeof reason === 'string' ? reason : null;
}

/** Why a response of the Responses API ended: the reason why it is incomplete, otherwise its status. */
export function readResponseEnd({
  status,
  incomplete_details: details,
}: Readonly<Record<string, unknown>>): string | null {
  const { reason } = asRecord(details);
  if (typeof reason === 'string') return reason;
  return typeof status === 'string' ? status : null;
}
