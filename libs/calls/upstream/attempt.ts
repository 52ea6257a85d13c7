import type { IncomingHttpHeaders } from 'node:http';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { OutboundRequest, ProviderError, Translation } from '#libs/providers/provider.ts';
import { admittedHeaders, findRequestId } from './answers/answer-headers.ts';
import type { Answer, Attempt, JsonAnswer, StreamSummary } from '#libs/calls/call.ts';
import { isQuotaUsedUp, readRetryAfter } from '#libs/calls/retry-waits.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import { BodyCollector } from './answers/collect-body.ts';
import type { Egress } from './egress/egress.ts';
import { errorBody } from './error-body.ts';
import { EventStream } from './answers/streams/event-stream.ts';
import { startExchange, type Flow, type SendWatch, type Sink } from './egress/exchange.ts';
import { plausibleUsage, type UsedBy } from './answers/plausible-usage.ts';
import type { AnswerParts } from './answers/read-answer.ts';
import type { BodyRead } from './answers/read-body.ts';
import { readCollected, type ReadInput } from './answers/read-collected.ts';

/** Bodies up to this size are left to V8, because the body recorder can still hold them (its `bodyBytesMax`). */
const freedBytesMin = 1_048_576;

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
 * Makes one call to the provider and reads its answer. Resolves with a whole body, with a stream whose first content has
 * arrived, or with the provider's error as an answer. Rejects with a GatewayError when there is no usable answer.
 * `watch` follows the request until its answer begins.
 */
export function attemptCall(input: AttemptInput, watch: SendWatch): Promise<Answer> {
  const { egress, outbound, timeouts, signal, faults, workspaceId } = input;
  const reader = new AnswerReader(input);
  startExchange(egress, outbound, { timeouts, signal, faults, workspaceId, isRepeatable: true, watch }, reader);
  return reader.answer;
}

/** Reads the answer of one attempt, whole or as a stream. A class because one is made for every call. */
class AnswerReader implements Sink {
  readonly #input: AttemptInput;
  readonly #answer = Promise.withResolvers<Answer>();
  readonly #startedAt = performance.now();
  readonly #collected: BodyCollector;
  #status = 0;
  #headers: IncomingHttpHeaders = {};
  #flow: Flow | undefined;
  #stream: EventStream | undefined;
  /** A stream was requested, and the headers do not show whether the answer is one. */
  #isUndecided = false;

  constructor(input: AttemptInput) {
    const { memory, faults, limits } = input;
    this.#input = input;
    this.#collected = new BodyCollector({ memory, faults, bytesMax: limits.jsonBytesMax });
  }

  get answer(): Promise<Answer> {
    return this.#answer.promise;
  }

  head(status: number, headers: IncomingHttpHeaders, flow: Flow): void {
    const { call, translation } = this.#input;
    this.#status = status;
    this.#headers = headers;
    this.#flow = flow;
    const isError = status >= 400;
    if (call.stream && !isError) {
      if (isEventStream(headers, translation)) return this.#openStream(flow);
      this.#isUndecided = true;
    }
    this.#collected.start(flow, isError ? 0 : Number(headers['content-length'] ?? 0));
  }

  data(chunk: Buffer): void {
    if (this.#isUndecided && this.#flow) {
      this.#isUndecided = false;
      if (startsEvents(chunk)) this.#openStream(this.#flow);
    }
    if (this.#stream) this.#stream.data(chunk);
    else this.#collect(chunk);
  }

  end(): void {
    if (this.#stream) this.#stream.end();
    else this.#readWhole();
  }

  fail(error: GatewayError): void {
    this.#collected.drop();
    if (this.#stream) this.#stream.fail(error);
    else this.#answer.reject(error);
  }

  #collect(chunk: Buffer): void {
    const { limits, faults } = this.#input;
    this.#collected.push(chunk);
    if (this.#status < 400 || this.#collected.sizeBytes <= limits.errorBytesMax) return;
    this.#readWhole();
    // The error was already answered, so this only closes the socket.
    this.#flow?.abort(faults().tooLarge('an error', limits.errorBytesMax));
  }

  #readWhole(): void {
    const { resolve } = this.#answer;
    if (this.#status >= 400) {
      const body = this.#collected.take();
      this.#collected.drop();
      const decode = () => this.#input.translation.decodeError(this.#status, body.toString());
      return resolve(this.#errorAnswer(this.#status, body, decode));
    }
    const read = readCollected(this.#input, this.#status, this.#collected);
    if (!(read instanceof Promise)) return resolve(this.#toAnswer(read));
    read.then((found) => resolve(this.#toAnswer(found))).catch((error: unknown) => this.#failReading(error));
  }

  #failReading(error: unknown): void {
    const { signal, faults } = this.#input;
    this.#collected.drop();
    if (signal.aborted) this.#answer.reject(faults().callerLeft());
    else this.#answer.reject(error instanceof GatewayError ? error : faults().unreadable(error));
  }

  #openStream(flow: Flow): void {
    const input = this.#input;
    const { call, translation, faults, memory, limits, timeouts } = input;
    this.#stream = new EventStream({
      call,
      usedBy: input,
      translation,
      flow,
      faults,
      memory,
      limits,
      idleMs: timeouts.idleMs,
      startedAt: this.#startedAt,
    });
    const { resolve, reject } = this.#answer;
    this.#stream.first.then((first) => {
      flow.answered();
      if (first.kind === 'error') resolve(this.#errorInside(first.error));
      else resolve({ ...this.#head(this.#status), kind: 'stream', ...first.answer });
    }, reject);
  }

  #toAnswer(read: BodyRead): Answer {
    const { faults } = this.#input;
    switch (read.kind) {
      case 'invalid':
        throw faults().invalid(read.what, read.sample);
      case 'failed':
        throw faults().inAnswer(read.error);
      case 'error':
        return this.#errorInside(read.error);
      case 'answer': {
        const { objectId } = read.parts;
        const own = { kind: 'json' as const, body: read.bytes, contentType: 'application/json' };
        const answer: JsonAnswer = { ...this.#head(this.#status), ...this.#parts(read.parts), ...own };
        if (objectId !== undefined) answer.objectId = objectId;
        if (own.body.length > freedBytesMin) answer.freeBody = () => void (own.body.buffer as ArrayBuffer).transfer(0);
        return answer;
      }
      case 'payloads': {
        const done: StreamSummary = { ...this.#parts(read.parts), complete: true, firstEventMs: 0, error: null };
        const events = once(read.payloads);
        return { ...this.#head(this.#status), kind: 'stream', events, done: Promise.resolve(done) };
      }
    }
  }

  /** An error inside a 200, as a body or as the first event. It gets the status that it names, else 502. */
  #errorInside(error: ProviderError): Answer {
    return this.#errorAnswer(error.status ?? 502, Buffer.alloc(0), () => error);
  }

  #errorAnswer(status: number, bytes: Buffer, decode: () => ProviderError): Answer {
    const { body, error } = errorBody(status, bytes, decode, this.#input.secrets, this.#input.call.operation);
    const { code, type } = error.error;
    const errorCode = isQuotaUsedUp(type) ? type : code;
    const head = this.#head(status);
    if (isQuotaUsedUp(errorCode)) head.headers['x-should-retry'] = 'false';
    // The value in the body, if there is none in a header.
    if (error.retryAfterMs !== undefined && readRetryAfter(head.headers, 0) === null) {
      head.headers['retry-after-ms'] = String(Math.ceil(error.retryAfterMs));
    }
    return { ...head, kind: 'json', body, contentType: 'application/json', errorCode };
  }

  #head(status: number) {
    const { provider, attempts, secrets, call } = this.#input;
    const rates = provider.readRateHeaders?.(this.#headers);
    const headers = rates === undefined ? this.#headers : { ...this.#headers, ...rates };
    return {
      status,
      headers: admittedHeaders(headers, secrets, call.operation),
      providerRequestId: findRequestId(this.#headers, provider.requestIdHeaders, secrets),
      attempts,
      usage: null,
      model: null,
      finishReason: null,
    };
  }

  #parts({ usage, model, finishReason }: AnswerParts) {
    return { usage: usage === null ? null : plausibleUsage(usage, this.#input), model, finishReason };
  }
}

/**
 * Whether a body is a stream, for servers without a content type: an SSE line starts with a field name or a colon, JSON
 * and HTML do not.
 */
const startsEvents = (chunk: Buffer): boolean =>
  /^\uFEFF?\s*(data|event|id|retry)?:/.test(chunk.toString('utf8', 0, 64));

function isEventStream(headers: IncomingHttpHeaders, translation: Translation): boolean {
  return translation.openFraming !== undefined || (headers['content-type'] ?? '').includes('text/event-stream');
}

async function* once(payloads: readonly string[]): AsyncGenerator<readonly string[]> {
  yield payloads;
}
