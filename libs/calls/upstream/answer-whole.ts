import type { ForwardRequest, Outcome, StreamSummary } from '#libs/calls/call.ts';
import { tooManyValues } from './provider-faults.ts';
import { costToRead, eventWorkMax } from './read-body.ts';
import { jsonToPayloads } from './json-to-stream.ts';
import { asRecord } from './usage.ts';

/** The same call without a stream, for an answer that has to be seen whole before its first word goes out. */
export function askWhole(request: ForwardRequest): ForwardRequest {
  const edits = { ...request.edits, stream: undefined, stream_options: undefined };
  return { ...request, stream: false, includeUsage: false, edits };
}

/**
 * The answer to `askWhole` as the stream that was asked for; errors and failures stay as they are. One of a great many values
 * is a failure, as an event of them would be.
 */
export function toStream(outcome: Outcome, { operation, includeUsage }: ForwardRequest): Outcome {
  if (outcome.kind !== 'json' || outcome.status < 200 || outcome.status > 299) return outcome;
  const { body, contentType: _json, usage, model, finishReason, attempts, ...head } = outcome;
  if (costToRead(body, { bytesMax: Number.POSITIVE_INFINITY, workMax: eventWorkMax }).excess !== null) {
    return { kind: 'failed', error: tooManyValues('The provider'), attempts, lostAnswer: outcome };
  }
  // What guardrails say is in no stream.
  const { hook_results: _results, ...value } = asRecord(JSON.parse(body.toString()));
  const payloads = jsonToPayloads(operation, value, includeUsage);
  const firstEventMs = attempts.at(-1)?.durationMs ?? 0;
  const done: StreamSummary = { usage, model, finishReason, complete: true, firstEventMs, error: null };
  const nothingYet = { usage: null, model: null, finishReason: null };
  return { ...head, ...nothingYet, attempts, kind: 'stream', events: once(payloads), done: Promise.resolve(done) };
}

async function* once(payloads: readonly string[]): AsyncGenerator<readonly string[]> {
  yield payloads;
}
