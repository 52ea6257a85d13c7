import { isUtf8 } from 'node:buffer';
import type { IncomingHttpHeaders } from 'node:http';
import { GatewayError } from '#libs/kernel/errors.ts';
import { measureJson } from '#libs/kernel/measure-json.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Call, OutboundRequest, Provider, ProviderError, Translation } from '#libs/providers/provider.ts';
import { admittedHeaders, requestIdOf } from './answer-headers.ts';
import type { Answer, Attempt, JsonAnswer, Limits, StreamSummary, Timeouts } from './answer.ts';
import { collectBody } from './collect-body.ts';
import type { Egress } from './egress.ts';
import { withBase64Vectors } from './embedding-format.ts';
import { errorBody } from './error-body.ts';
import { openEventStream, type EventStream } from './event-stream.ts';
import { startExchange, type Flow } from './exchange.ts';
import { jsonToPayloads } from './json-to-stream.ts';
import type { Faults } from './provider-faults.ts';
import { answerLists, partsOf, scanParts, type AnswerParts } from './read-answer.ts';
import { isHopeless } from './retry.ts';
import { readRetryAfter } from './retry-after.ts';
import { asRecord } from './usage.ts';

export type AttemptInput = {
  egress: Egress;
  limits: Limits;
  provider: Provider;
  translation: Translation;
  call: Call;
  outbound: OutboundRequest;
  timeouts: Timeouts;
  signal: AbortSignal;
  faults: () => Faults;
  secrets: readonly string[];
  workspaceId: string | undefined;
  /** To which the answer is charged while it is read; absent: nobody counts it. */
  memory: MemoryLease | undefined;
  /** Shared by all attempts of the call; not written here. */
  attempts: readonly Attempt[];
};

/** `errorCode` is the provider's own, of an answer that is an error. */
export type AttemptResult = { answer: Answer; errorCode: string | null };

/**
 * Makes one call to the provider and reads its answer. Resolves with a whole body, with a stream whose first event is
 * there, or with the provider's error as an answer; rejects with a GatewayError when there is no answer to speak of. `resent`
 * is told when the call goes out once more, because the provider had closed the idle socket.
 */
export function attemptCall(input: AttemptInput, resent: () => void): Promise<AttemptResult> {
  const { egress, limits, translation, call, timeouts, signal, faults, workspaceId, memory } = input;
  const { promise, resolve, reject } = Promise.withResolvers<AttemptResult>();
  const startedAt = performance.now();
  let status = 0;
  let headers: IncomingHttpHeaders = {};
  let mode: 'whole' | 'undecided' | 'events' = 'whole';
  let stream: EventStream | undefined;
  let flow: Flow | undefined;

  const collected = collectBody({ memory, flow: () => flow, faults, bytesMax: limits.jsonBytesMax });

  const whole = (): void => {
    const body = collected.take();
    if (status >= 400) {
      collected.drop();
      return resolve(readError(input, status, headers, body));
    }
    const failed = (error: unknown): void => {
      collected.drop();
      if (signal.aborted) reject(faults().callerLeft());
      else reject(error instanceof GatewayError ? error : faults().unreadable(error));
    };
    if (isScanned(input, body)) return void scanBody(input, status, headers, body).then(resolve, failed);
    const parseBytes = parseCost(input, body);
    const read = (): void => {
      try {
        resolve(readBody(input, status, headers, body));
      } finally {
        memory?.give(parseBytes);
      }
    };
    if (memory === undefined || memory.tryCharge(parseBytes)) return read();
    memory.chargeWhenFree(parseBytes, signal).then(read).catch(failed);
  };

  const openStream = (over: Flow): EventStream => {
    mode = 'events';
    const opened = openEventStream({
      call,
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
      const head = { ...headOf(input, status, headers), usage: null, model: null, finishReason: null };
      resolve({ answer: { ...head, kind: 'stream', ...first.answer }, errorCode: null });
    }, reject);
    return opened;
  };

  const collect = (chunk: Buffer): void => {
    collected.push(chunk);
    if (status < 400 || collected.sizeBytes() <= limits.errorBytesMax) return;
    whole();
    flow?.abort(faults().tooLarge('an error', limits.errorBytesMax)); // answered already: this only closes the socket
  };

  startExchange(
    egress,
    input.outbound,
    { timeouts, signal, faults, workspaceId, isRepeatable: true },
    {
      resent,
      head: (code, received, over) => {
        status = code;
        headers = received;
        flow = over;
        if (code < 400 && code >= 300) throw faults().redirect(code);
        const encoding = received['content-encoding'];
        // Only identity was asked for; unpacking unasked is how a small answer becomes a large one.
        if (encoding !== undefined && encoding !== '' && encoding !== 'identity') {
          throw faults().invalid('sent a compressed answer although only identity was accepted');
        }
        if (code >= 400) return;
        if (call.stream) mode = isEventStream(received, translation) ? 'events' : 'undecided';
        if (mode === 'events') stream = openStream(over);
        else collected.expect(Number(received['content-length'] ?? 0));
      },
      data: (chunk) => {
        if (mode === 'undecided' && flow) {
          mode = 'whole';
          // Servers that forget the content type: an SSE line starts with a field name or a colon, JSON and HTML do not.
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
    providerRequestId: requestIdOf(headers, provider.requestIdHeaders, secrets),
    attempts,
  };
}

/** Smaller answers are parsed unmeasured: what they take passes in a moment, and their 2,048 levels fit on the stack. */
const measuredBytesMin = 4_096;
/** From this size on an answer that passes unchanged is not parsed. */
const scannedBytesMin = 262_144;
/** Beyond any real answer, and far from where recursion over the value would end. */
const depthMax = 512;

const isScanned = ({ call, translation }: AttemptInput, body: Buffer): boolean =>
  body.length >= scannedBytesMin && translation.decode === undefined && !call.stream;

/** What it takes to parse a successful body; throws `upstream_response_too_large` when the call may never have so much. */
function parseCost(input: AttemptInput, body: Buffer): number {
  if (body.length < measuredBytesMin) return 0;
  const { memory, faults } = input;
  const freeBytes = memory === undefined ? Number.POSITIVE_INFINITY : memory.leaseBytesMax - memory.usedBytes;
  const limits = { depthMax, membersMax: Number.POSITIVE_INFINITY, valueBytesMax: freeBytes };
  const { excess, textBytes, valueBytes } = measureJson(body, limits);
  if (excess === 'depth') throw faults().invalid(`sent a body that is nested more than ${depthMax} levels deep`);
  if (textBytes + valueBytes > freeBytes) throw faults().tooComplex(textBytes + valueBytes, freeBytes);
  return textBytes + valueBytes;
}

/** A successful body: JSON of the shape that was asked for, or a stream made of it; throws `upstream_invalid_response`. */
function readBody(input: AttemptInput, status: number, headers: IncomingHttpHeaders, bytes: Buffer): AttemptResult {
  const { call, translation, faults } = input;
  if (bytes.length === 0) throw faults().invalid(`answered ${status} with an empty body`);
  const parsed = parseJson(bytes);
  if (parsed === undefined) throw notJson(input, status, bytes);
  let parts = partsOf(call.operation, parsed);
  if (parts.hasError) return asError(input, headers, translation.decodeError(status, bytes.toString()));
  const decoded = translation.decode ? decodeBody(input, parsed) : parsed;
  if (decoded !== parsed) parts = partsOf(call.operation, decoded);
  if (call.stream) return asStream(input, status, headers, decoded, parts);
  return pass(input, status, headers, decoded === parsed ? bytes : Buffer.from(JSON.stringify(decoded)), parts);
}

/** As `readBody`, of a large answer that passes unchanged. */
async function scanBody(
  input: AttemptInput,
  status: number,
  headers: IncomingHttpHeaders,
  bytes: Buffer,
): Promise<AttemptResult> {
  const { call, limits, translation } = input;
  const parts = await scanParts(call.operation, bytes, limits.errorBytesMax);
  if (parts === null) throw notJson(input, status, bytes);
  if (!parts.hasError) return pass(input, status, headers, bytes, parts);
  return asError(input, headers, translation.decodeError(status, `{"error":${parts.error}}`));
}

const notJson = ({ faults }: AttemptInput, status: number, bytes: Buffer): GatewayError =>
  faults().invalid(`answered ${status} with a body that is not JSON`, bytes);

function pass(
  input: AttemptInput,
  status: number,
  headers: IncomingHttpHeaders,
  bytes: Buffer,
  parts: AnswerParts,
): AttemptResult {
  if (!parts.hasList) throw withoutList(input, status, bytes);
  const body = withBase64Vectors(input.call, bytes) ?? bytes;
  const head = headOf(input, status, headers);
  return {
    answer: { ...head, ...toldBy(parts), kind: 'json', body, contentType: 'application/json' },
    errorCode: null,
  };
}

function asStream(
  input: AttemptInput,
  status: number,
  headers: IncomingHttpHeaders,
  value: unknown,
  parts: AnswerParts,
): AttemptResult {
  const { call, faults } = input;
  if (!parts.hasList) throw withoutList(input, status, JSON.stringify(value));
  const payloads = jsonToPayloads(call.operation, asRecord(value), call.includeUsage);
  if (payloads.length === 0) {
    throw faults().invalid(`answered ${status} without a single choice`, JSON.stringify(value));
  }
  const done: StreamSummary = { ...toldBy(parts), complete: true, firstEventMs: 0, error: null };
  const streamed = { usage: null, model: null, finishReason: null, kind: 'stream' as const };
  const head = headOf(input, status, headers);
  return { answer: { ...head, ...streamed, events: once(payloads), done: Promise.resolve(done) }, errorCode: null };
}

const toldBy = ({ usage, model, finishReason }: AnswerParts) => ({ usage, model, finishReason });

const withoutList = ({ call, faults }: AttemptInput, status: number, sample: string | Buffer): GatewayError =>
  faults().invalid(`answered ${status} with JSON that has no "${answerLists[call.operation]}" list`, sample);

function decodeBody({ translation, call, faults }: AttemptInput, parsed: unknown): unknown {
  try {
    return translation.decode?.(parsed, call);
  } catch (error) {
    throw error instanceof GatewayError ? faults().inAnswer(error) : error;
  }
}

async function* once(payloads: readonly string[]): AsyncGenerator<readonly string[]> {
  yield payloads;
}

/** The value, or undefined when the bytes are no JSON in UTF-8. */
function parseJson(bytes: Buffer): unknown {
  if (!isUtf8(bytes)) return undefined;
  try {
    return JSON.parse(bytes.toString());
  } catch {
    return undefined;
  }
}

/** An error inside a 200, as a body or as the first event: given the status it names, else 502. */
function asError(input: AttemptInput, headers: IncomingHttpHeaders, error: ProviderError): AttemptResult {
  return errorAnswer(input, error.status ?? 502, headers, Buffer.alloc(0), () => error);
}

function readError(input: AttemptInput, status: number, headers: IncomingHttpHeaders, bytes: Buffer): AttemptResult {
  return errorAnswer(input, status, headers, bytes, () => input.translation.decodeError(status, bytes.toString()));
}

function errorAnswer(
  input: AttemptInput,
  status: number,
  headers: IncomingHttpHeaders,
  bytes: Buffer,
  decode: () => ProviderError,
): AttemptResult {
  const { body, error } = errorBody(status, bytes, decode, input.secrets);
  const { code, type } = error.error;
  const errorCode = isHopeless(type) ? type : code;
  const head = headOf(input, status, headers);
  if (isHopeless(errorCode)) head.headers['x-should-retry'] = 'false';
  // What the body tells, where no header does.
  if (error.retryAfterMs !== undefined && readRetryAfter(head.headers, 0) === null) {
    head.headers['retry-after-ms'] = String(Math.ceil(error.retryAfterMs));
  }
  const answer: JsonAnswer = {
    ...head,
    kind: 'json',
    body,
    contentType: 'application/json',
    usage: null,
    model: null,
    finishReason: null,
  };
  return { answer, errorCode };
}
