import type { Answer, FinishReason } from '../../model/generate.ts';
import { hexOf } from '../../model/hash.ts';
import { rateToken } from '../../model/log-probabilities.ts';
import { splitTokens } from '../../model/tokens.ts';

// Like everything else, `created` is derived from the request, so that equal requests have answers with equal bytes. It is
// in the year after this moment (2025-10-09T09:46:40Z), which is in the past for every real client.
const createdFrom = 1_760_000_000;
const createdRange = 31_536_000;

/** The creation time of this answer, in Unix seconds. */
export function createdAt(hash: number): number {
  return createdFrom + (hash % createdRange);
}

export function chatId(hash: number): string {
  return `chatcmpl-${hexOf(hash, 29)}`;
}

export function textId(hash: number): string {
  return `cmpl-${hexOf(hash, 29)}`;
}

/** A single fingerprint, because the "backend" never changes. */
export const systemFingerprint = 'fp_51a1ce0000';

export function chatUsage({ promptTokens, cachedTokens, completionTokens, reasoningTokens }: Answer): string {
  const total = promptTokens + completionTokens;
  return `{"prompt_tokens":${promptTokens},"completion_tokens":${completionTokens},"total_tokens":${total},"prompt_tokens_details":{"cached_tokens":${cachedTokens},"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":${reasoningTokens},"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}`;
}

export function textUsage({
  promptTokens,
  completionTokens,
}: Pick<Answer, 'promptTokens' | 'completionTokens'>): string {
  return `{"prompt_tokens":${promptTokens},"completion_tokens":${completionTokens},"total_tokens":${promptTokens + completionTokens}}`;
}

export const doneFrame = 'data: [DONE]\n\n';

/** One server-sent event. */
export function frame(json: string): string {
  return `data: ${json}\n\n`;
}

/** Takes one item from each source in turn until all have ended. This is how the choices of a stream alternate. */
export function* takeTurns<Item>(sources: readonly Generator<Item>[]): Generator<Item> {
  let open = [...sources];
  while (open.length > 0) {
    const ended = new Set<Generator<Item>>();
    for (const source of open) {
      const next = source.next();
      if (next.done === true) ended.add(source);
      else yield next.value;
    }
    if (ended.size > 0) open = open.filter((source) => !ended.has(source));
  }
}

export function finishReason(finish: FinishReason, legacyFunctions: boolean): string {
  if (finish === 'refusal') return 'stop';
  return finish === 'tool_calls' && legacyFunctions ? 'function_call' : finish;
}

/** The `logprobs` member of a choice for a text whose first token is the answer's token number `position`. */
export function chatLogprobs(text: string | null, position: number, alternatives: number | undefined): string {
  if (alternatives === undefined) return 'null';
  if (text === null) return '{"content":null,"refusal":null}';
  const content = splitTokens(text).map((token, index) => {
    const rated = rateToken(token, position + index, alternatives);
    const item = ({ token, logprob }: { token: string; logprob: number }) => ({
      token,
      logprob,
      bytes: [...Buffer.from(token)],
    });
    return { ...item(rated), top_logprobs: rated.alternatives.map(item) };
  });
  return JSON.stringify({ content, refusal: null });
}
