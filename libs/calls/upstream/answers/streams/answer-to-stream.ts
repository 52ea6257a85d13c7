import type { ForwardRequest, Outcome, StreamSummary } from '#libs/calls/call.ts';
import { tooManyValues } from '../../provider-faults.ts';
import { costToRead, eventWorkMax } from '../read-body.ts';
import { splitAnswer } from '#libs/providers/dialects.ts';
import { asRecord } from '../usage.ts';

/**
 * Returns a whole answer as the stream that was requested. Errors and failures are not changed. An answer with very
 * many values is a failure, as an event with them would be.
 */
export function toStream(outcome: Outcome, { operation, includeUsage }: ForwardRequest): Outcome {
  if (outcome.kind !== 'json' || outcome.status < 200 || outcome.status > 299) return outcome;
  const { body, contentType: _json, usage, model, finishReason, attempts, ...head } = outcome;
  if (costToRead(body, { bytesMax: Number.POSITIVE_INFINITY, workMax: eventWorkMax }).excess !== null) {
    return { kind: 'failed', error: tooManyValues('The provider'), attempts, lostAnswer: outcome };
  }
  const value = asRecord(JSON.parse(body.toString()));
  const payloads = splitAnswer(operation, value, includeUsage);
  const firstEventMs = attempts.at(-1)?.durationMs ?? 0;
  const done: StreamSummary = { usage, model, finishReason, complete: true, firstEventMs, error: null };
  const nothingYet = { usage: null, model: null, finishReason: null };
  return { ...head, ...nothingYet, attempts, kind: 'stream', events: once(payloads), done: Promise.resolve(done) };
}

async function* once(payloads: readonly string[]): AsyncGenerator<readonly string[]> {
  yield payloads;
}
