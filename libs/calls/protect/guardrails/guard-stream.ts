import { isReference, type GuardrailEntry } from '#libs/contracts/configs/guardrails.ts';
import type { ForwardRequest, JsonAnswer, StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import { buildStreamAnswer, type StreamAnswerBuilder } from './texts/stream-answer.ts';

/**
 * Whether a stream must be checked before any of it is sent. If one guardrail requires that, all of them check it at
 * that point.
 */
export const mustHoldStream = (output: readonly GuardrailEntry[]): boolean =>
  output.some((entry) => isReference(entry) || entry.streamMode === 'hold');

/** A stream that has ended but has not been sent yet. */
export type HeldStream = {
  /** The answer that the call would have had without streaming. */
  answer: JsonAnswer;
  /** The stream as it arrived; `more` are the members of one additional event at its end. */
  release: (status: number, more: object | null) => StreamAnswer;
};

/** A text takes two bytes per character if one of its characters is wide. */
const charBytes = 2;

/**
 * Reads a whole stream, charged to its call. Rejects with GatewayError when it breaks off, is too long to be checked,
 * or finds no memory (`server_overloaded`). Before that, `onLost` is called with the usage of the stream.
 */
export async function holdStream(
  stream: StreamAnswer,
  { operation, memory, signal, includeUsage }: ForwardRequest,
  onLost: (answer: JsonAnswer) => void,
): Promise<HeldStream> {
  const builder = buildStreamAnswer(operation);
  const batches: (readonly string[])[] = [];
  try {
    for await (const batch of stream.events) {
      const bytes = readBatch(builder, batch) + charBytes * charsOf(batch);
      await memory?.chargeWhenFree(bytes, toAbortSignal(signal));
      batches.push(batch);
    }
  } catch (error) {
    onLost(toCachedAnswer(stream, await stream.done, Buffer.alloc(0)));
    throw error;
  }
  const summary = await stream.done;
  return {
    answer: toCachedAnswer(stream, summary, builder.body()),
    release: (status, more) => {
      const last = more === null ? [] : [[builder.eventWith({ ...(includeUsage ? { usage: null } : {}), ...more })]];
      return { ...stream, status, events: inTurn([...batches, ...last]), done: Promise.resolve(summary) };
    },
  };
}

/** The results for a stream that was sent: the members of its last event, and the status for the record. */
type Annotation = { members: object | null; status: number | null };

/**
 * Yields the stream as it arrives, with an event at its end that has the results of `judge`. The answer that is
 * assembled from it is charged to its call. A stream that cannot be checked ends with that error.
 */
export function annotateStream(
  stream: StreamAnswer,
  { operation, memory, includeUsage }: ForwardRequest,
  judge: (answer: JsonAnswer) => Promise<Annotation>,
): StreamAnswer {
  const builder = buildStreamAnswer(operation);
  const source = stream.events[Symbol.asyncIterator]();
  const ended = Promise.withResolvers<Partial<StreamSummary>>();
  let isOver = false;

  const end = async (): Promise<IteratorResult<readonly string[]>> => {
    const summary = await stream.done;
    const { members, status } = await judge(toCachedAnswer(stream, summary, builder.body()));
    ended.resolve(status === null ? {} : { status });
    if (members === null) return { done: true, value: undefined };
    return { done: false, value: [builder.eventWith({ ...(includeUsage ? { usage: null } : {}), ...members })] };
  };
  const next = async (): Promise<IteratorResult<readonly string[]>> => {
    if (isOver) return { done: true, value: undefined };
    try {
      const step = await source.next();
      if (step.done !== true) {
        const bytes = readBatch(builder, step.value);
        memory?.charge(bytes);
        return step;
      }
      isOver = true;
      return await end();
    } catch (error) {
      isOver = true;
      ended.resolve({ error: asGatewayError(error) });
      void source.return?.();
      throw error;
    }
  };
  const leave = async (): Promise<IteratorResult<readonly string[]>> => {
    isOver = true;
    ended.resolve({});
    await source.return?.();
    return { done: true, value: undefined };
  };
  const done = stream.done.then(async (summary) => ({ ...summary, ...(await ended.promise) }));
  return { ...stream, events: { [Symbol.asyncIterator]: () => ({ next, return: leave }) }, done };
}

/** How many bytes of a batch are kept. Throws when the answer has become too long. */
function readBatch(builder: StreamAnswerBuilder, batch: readonly string[]): number {
  const bytes = batch.reduce((sum, payload) => sum + builder.add(payload), 0);
  if (!builder.isTooLong) return bytes;
  const message = "The provider's answer is too large for the guardrails to check. Ask for a shorter one.";
  throw new GatewayError('provider_failed', 'upstream_response_too_large', message);
}

const charsOf = (batch: readonly string[]): number => batch.reduce((sum, payload) => sum + payload.length, 0);

function toCachedAnswer(stream: StreamAnswer, { usage, model, finishReason }: StreamSummary, body: Buffer): JsonAnswer {
  const { status, headers, providerRequestId, attempts } = stream;
  const contentType = 'application/json';
  return { kind: 'json', status, headers, providerRequestId, attempts, usage, model, finishReason, body, contentType };
}

async function* inTurn(batches: readonly (readonly string[])[]): AsyncGenerator<readonly string[]> {
  for (const batch of batches) yield batch;
}
