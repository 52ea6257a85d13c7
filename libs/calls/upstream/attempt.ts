import type { IncomingHttpHeaders } from 'node:http';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { OutboundRequest, ProviderError, Translation } from '#libs/providers/provider.ts';
import { admittedHeaders, findRequestId } from './answers/answer-headers.ts';
import type { Answer, Attempt, JsonAnswer, StreamSummary } from '#libs/calls/call.ts';
import { isQuotaUsedUp, readRetryAfter } from '#libs/calls/retry-waits.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import { collectBody } from './answers/collect-body.ts';
import type { Egress } from './egress/egress.ts';
import { errorBody } from './error-body.ts';
import { EventStream } from './answers/event-stream.ts';
import { startExchange, type Flow, type SendWatch } from './egress/exchange.ts';
import { plausibleUsage, type UsedBy } from './answers/plausible-usage.ts';
import type { AnswerParts } from './answers/read-answer.ts';
import type { BodyRead } from './answers/read-body.ts';
import { readCollected, type ReadInput } from './answers/read-collected.ts';

export type AttemptInput = ReadInput &
  UsedBy & {
    egress: Egress;
    outbound: OutboundRequest;
    timeouts: Timeouts;
    secrets: readonly string[];
    /** Shared by all attempts of the call; not changed here. */
    attempts: readonly Attempt[];
  };

/**
 * Makes one call to the provider and reads its answer. Resolves with a whole body, with a stream whose first event has
 * arrived, or with the provider's error as an answer. Rejects with a GatewayError when there is no usable answer.
 * `watch` follows the request until its answer begins.
 */
export function attemptCall(input: AttemptInput, watch: SendWatch): Promise<Answer> {
  const { egress, limits, translation, call, timeouts, signal, faults, workspaceId, memory } = input;
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const startedAt = performance.now();
  let status = 0;
  let headers: IncomingHttpHeaders = {};
  let mode: 'whole' | 'undecided' | 'events' = 'whole';
  let stream: EventStream | undefined;
  let flow: Flow | undefined;

  const collected = collectBody({ memory, flow: () => flow, faults, bytesMax: limits.jsonBytesMax });

  const whole = (): void => {
    if (status >= 400) {
      const body = collected.take();
      collected.drop();
      return resolve(readError(input, status, headers, body));
    }
    const failed = (error: unknown): void => {
      collected.drop();
      if (signal.aborted) reject(faults().callerLeft());
      else reject(error instanceof GatewayError ? error : faults().unreadable(error));
    };
    const read = readCollected(input, status, collected);
    if (read instanceof Promise) read.then((found) => resolve(toResult(input, status, headers, found))).catch(failed);
    else resolve(toResult(input, status, headers, read));
  };

  const openStream = (over: Flow): EventStream => {
    mode = 'events';
    const opened = new EventStream({
      call,
      usedBy: input,
      translation,
      flow: over,
      faults,
      memory,
      limits,
      idleMs: timeouts.idleMs,
      startedAt,
    });
    opened.first.then((first) => {
      over.answered();
      if (first.kind === 'error') return resolve(asError(input, headers, first.error));
      const head = { ...headOf(input, status, headers), ...nothingSaid };
      resolve({ ...head, kind: 'stream', ...first.answer });
    }, reject);
    return opened;
  };

  const collect = (chunk: Buffer): void => {
    collected.push(chunk);
    if (status < 400 || collected.sizeBytes() <= limits.errorBytesMax) return;
    whole();
    // The error was already answered, so this only closes the socket.
    flow?.abort(faults().tooLarge('an error', limits.errorBytesMax));
  };

  startExchange(
    egress,
    input.outbound,
    { timeouts, signal, faults, workspaceId, isRepeatable: true },
    {
      sent: watch.sent,
      resent: watch.resent,
      head: (code, received, over) => {
        status = code;
        headers = received;
        flow = over;
        if (code >= 400) return;
        if (call.stream) mode = isEventStream(received, translation) ? 'events' : 'undecided';
        if (mode === 'events') stream = openStream(over);
        else collected.expect(Number(received['content-length'] ?? 0));
      },
      data: (chunk) => {
        if (mode === 'undecided' && flow) {
          mode = 'whole';
          // For servers without a content type: an SSE line starts with a field name or a colon, JSON and HTML do not.
          if (collected.sizeBytes() === 0 && /^\uFEFF?\s*(data|event|id|retry)?:/.test(chunk.toString('utf8', 0, 64)))
            stream = openStream(flow);
        }
        if (stream) stream.data(chunk);
        else collect(chunk);
      },
      end: () => {
        if (stream) stream.end();
        else whole();
      },
      fail: (error) => {
        collected.drop();
        if (stream) stream.fail(error);
        else reject(error);
      },
    },
  );
  return promise;
}

function isEventStream(headers: IncomingHttpHeaders, translation: Translation): boolean {
  return translation.openFraming !== undefined || (headers['content-type'] ?? '').includes('text/event-stream');
}

function headOf({ provider, attempts, secrets }: AttemptInput, status: number, headers: IncomingHttpHeaders) {
  return {
    status,
    headers: admittedHeaders(headers, secrets),
    providerRequestId: findRequestId(headers, provider.requestIdHeaders, secrets),
    attempts,
  };
}

function toResult(input: AttemptInput, status: number, headers: IncomingHttpHeaders, read: BodyRead): Answer {
  const { faults } = input;
  switch (read.kind) {
    case 'invalid':
      throw faults().invalid(read.what, read.sample);
    case 'failed':
      throw faults().inAnswer(read.error);
    case 'error':
      return asError(input, headers, read.error);
    case 'answer': {
      const answer = { ...headOf(input, status, headers), ...partsOf(input, read.parts) };
      return { ...answer, kind: 'json', body: read.bytes, contentType: 'application/json' };
    }
    case 'payloads': {
      const done: StreamSummary = { ...partsOf(input, read.parts), complete: true, firstEventMs: 0, error: null };
      const head = { ...headOf(input, status, headers), ...nothingSaid };
      return { ...head, kind: 'stream', events: once(read.payloads), done: Promise.resolve(done) };
    }
  }
}

const nothingSaid = { usage: null, model: null, finishReason: null };

const partsOf = (input: AttemptInput, { usage, model, finishReason }: AnswerParts) => ({
  usage: usage === null ? null : plausibleUsage(usage, input),
  model,
  finishReason,
});

async function* once(payloads: readonly string[]): AsyncGenerator<readonly string[]> {
  yield payloads;
}

/** An error inside a 200, as a body or as the first event. It gets the status that it names, else 502. */
function asError(input: AttemptInput, headers: IncomingHttpHeaders, error: ProviderError): Answer {
  return errorAnswer(input, error.status ?? 502, headers, Buffer.alloc(0), () => error);
}

function readError(input: AttemptInput, status: number, headers: IncomingHttpHeaders, bytes: Buffer): Answer {
  return errorAnswer(input, status, headers, bytes, () => input.translation.decodeError(status, bytes.toString()));
}

function errorAnswer(
  input: AttemptInput,
  status: number,
  headers: IncomingHttpHeaders,
  bytes: Buffer,
  decode: () => ProviderError,
): Answer {
  const { body, error } = errorBody(status, bytes, decode, input.secrets);
  const { code, type } = error.error;
  const errorCode = isQuotaUsedUp(type) ? type : code;
  const head = headOf(input, status, headers);
  if (isQuotaUsedUp(errorCode)) head.headers['x-should-retry'] = 'false';
  // The value in the body, if there is none in a header.
  if (error.retryAfterMs !== undefined && readRetryAfter(head.headers, 0) === null) {
    head.headers['retry-after-ms'] = String(Math.ceil(error.retryAfterMs));
  }
  const answer: JsonAnswer = {
    ...head,
    kind: 'json',
    body,
    contentType: 'application/json',
    ...nothingSaid,
    errorCode,
  };
  return answer;
}
