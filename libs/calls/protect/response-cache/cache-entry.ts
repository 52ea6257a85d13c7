import type { CachedAnswerHead } from '#libs/database/schema.ts';
import type { Answer, StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import { endsWithUsageChunk, splitAnswer } from '#libs/providers/dialects.ts';
import { asRecord } from '#libs/calls/upstream/answers/usage.ts';
import type { CallOperation } from '#libs/calls/call.ts';

/**
 * The metadata that is stored with the body. `json`: the body of an answer. `stream`: the payloads of a complete
 * stream, as a JSON list of texts; `hasUsageChunk` when it ends with its usage.
 */
export type EntryHead = CachedAnswerHead;

/** A cached answer. It is immutable. Times are in epoch milliseconds. */
export type CacheEntry = { head: EntryHead; body: Buffer; createdAtMs: number; expiresAtMs: number };

type Wanted = { operation: CallOperation; stream: boolean; includeUsage: boolean };

/**
 * Returns the answer to a call from an entry, or null when the entry does not have the requested form: a cached stream
 * is not used for a JSON body, and one without usage is not used for a caller who asked for it. The answer has no
 * attempts, because no provider was called.
 */
export function toCachedAnswer(entry: CacheEntry, { operation, stream, includeUsage }: Wanted): Answer | null {
  const { kind, hasUsageChunk, contentType, model, finishReason, usage } = entry.head;
  const common = { status: 200, headers: {}, providerRequestId: null, attempts: [] };
  if (!stream) {
    return kind === 'json'
      ? { ...common, kind: 'json', body: entry.body, contentType, usage, model, finishReason }
      : null;
  }
  if (kind === 'stream' && includeUsage && endsWithUsageChunk(operation) && !hasUsageChunk) return null;
  const payloads = payloadsOf(entry, { operation, includeUsage });
  const done: StreamSummary = { usage, model, finishReason, complete: true, firstEventMs: 0, error: null };
  return {
    ...common,
    kind: 'stream',
    usage: null,
    model: null,
    finishReason: null,
    events: once(payloads),
    done: Promise.resolve(done),
  };
}

function payloadsOf({ head, body }: CacheEntry, wanted: Omit<Wanted, 'stream'>): readonly string[] {
  const value: unknown = JSON.parse(body.toString());
  if (head.kind === 'json') return splitAnswer(wanted.operation, asRecord(value), wanted.includeUsage);
  const payloads = value as string[];
  return head.hasUsageChunk && !wanted.includeUsage ? payloads.slice(0, -1) : payloads;
}

async function* once(payloads: readonly string[]): AsyncGenerator<readonly string[]> {
  yield payloads;
}

/** The states of a response that runs in the background. */
const runningStates: ReadonlySet<string> = new Set(['queued', 'in_progress']);

/**
 * Returns the head under which a whole answer is cached; null for one that must not be cached: an error, or a partial
 * answer.
 */
export function headOf(answer: Answer): EntryHead | null {
  if (answer.kind !== 'json' || answer.status !== 200) return null;
  const { contentType, model, finishReason, usage } = answer;
  if (finishReason !== null && runningStates.has(finishReason)) return null;
  return { kind: 'json', hasUsageChunk: false, contentType, model, finishReason, usage };
}

/**
 * Returns the same stream, and copies its payloads while they pass. `onComplete` gets them when the stream has ended
 * completely; it is not called when the stream broke off, was left early, or grew past `charsMax`.
 */
export function recordStream(
  answer: StreamAnswer,
  { operation, charsMax, includeUsage }: { operation: CallOperation; charsMax: number; includeUsage: boolean },
  onComplete: (head: EntryHead, body: Buffer) => void,
): StreamAnswer {
  const source = answer.events[Symbol.asyncIterator]();
  let kept: string[] | null = [];
  let chars = 0;
  const end = async (): Promise<void> => {
    const { complete, error, model, finishReason, usage } = await answer.done;
    const last = kept?.at(-1);
    if (!complete || error !== null || kept === null || last === undefined) return;
    const hasUsageChunk = includeUsage && endsWithUsageChunk(operation) && isUsageChunk(last);
    const contentType = 'text/event-stream';
    const head: EntryHead = { kind: 'stream', hasUsageChunk, contentType, model, finishReason, usage };
    onComplete(head, Buffer.from(JSON.stringify(kept)));
  };
  // Not a generator: a generator that is left before it has started would not notify its source.
  const events: AsyncIterator<readonly string[]> = {
    next: async () => {
      const step = await source.next();
      if (step.done === true) await end();
      else {
        for (const payload of step.value) chars += payload.length;
        if (chars > charsMax) kept = null;
        else kept?.push(...step.value);
      }
      return step;
    },
    return: async () => {
      kept = null;
      await source.return?.();
      return { done: true, value: undefined };
    },
  };
  return { ...answer, events: { [Symbol.asyncIterator]: () => events } };
}

function isUsageChunk(payload: string): boolean {
  const { choices, usage, response } = asRecord(JSON.parse(payload));
  // The last event of the Responses API.
  if (response !== undefined) return true;
  return Array.isArray(choices) && choices.length === 0 && usage !== undefined && usage !== null;
}
