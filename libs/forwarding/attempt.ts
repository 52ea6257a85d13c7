import { isUtf8 } from 'node:buffer';
import type { IncomingHttpHeaders } from 'node:http';
import { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import type {
  Call,
  Operation,
  OutboundRequest,
  Provider,
  ProviderError,
  Translation,
} from '#libs/providers/provider.ts';
import { admittedHeaders, requestIdOf } from './answer-headers.ts';
import type { Answer, Attempt, JsonAnswer, Limits, StreamSummary, Timeouts } from './answer.ts';
import type { Egress } from './egress.ts';
import { withBase64Vectors } from './embedding-format.ts';
import { errorBody } from './error-body.ts';
import { openEventStream, type EventStream } from './event-stream.ts';
import { startExchange, type Flow } from './exchange.ts';
import { jsonToPayloads } from './json-to-stream.ts';
import type { Faults } from './provider-faults.ts';
import { isHopeless } from './retry.ts';
import { readRetryAfter } from './retry-after.ts';
import { asRecord, readFinishReason, readTokenUsage, readUsage } from './usage.ts';

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
  /** Shared by all attempts of the call; not written here. */
  attempts: readonly Attempt[];
};

/** The list without which a 200 is no answer to the operation. */
const answerLists: Readonly<Record<Operation, string>> = {
  chat: 'choices',
  completions: 'choices',
  embeddings: 'data',
  models: 'data',
  responses: 'output',
  moderations: 'results',
  images: 'data',
};

/** `errorCode` is the provider's own, of an answer that is an error. */
export type AttemptResult = { answer: Answer; errorCode: string | null };

/**
 * Makes one call to the provider and reads its answer. Resolves with a whole body, with a stream whose first event is
 * there, or with the provider's error as an answer; rejects with a GatewayError when there is no answer to speak of. `resent`
 * is told when the call goes out once more, because the provider had closed the idle socket.
 */
export function attemptCall(input: AttemptInput, resent: () => void): Promise<AttemptResult> {
  const { egress, limits, translation, call, timeouts, signal, faults, workspaceId } = input;
  const { promise, resolve, reject } = Promise.withResolvers<AttemptResult>();
  const startedAt = performance.now();
  const chunks: Buffer[] = [];
  let bytes = 0;
  let status = 0;
  let headers: IncomingHttpHeaders = {};
  let mode: 'whole' | 'undecided' | 'events' = 'whole';
  let stream: EventStream | undefined;
  let flow: Flow | undefined;

  const whole = (): void => {
    const body = chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks, bytes);
    resolve(status >= 400 ? readError(input, status, headers, body) : readBody(input, status, headers, body));
  };

  const openStream = (over: Flow): EventStream => {
    mode = 'events';
    const opened = openEventStream({
      call,
      translation,
      flow: over,
      faults,
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
    bytes += chunk.length;
    // As of requests: an answer of one piece leaves no others behind.
    if (chunks.length > 0) countTransferred(chunk.length);
    chunks.push(chunk);
    if (status >= 400 && bytes > limits.errorBytesMax) {
      whole();
      flow?.abort(faults().tooLarge('an error', limits.errorBytesMax)); // answered already: this only closes the socket
    } else if (bytes > limits.jsonBytesMax) throw faults().tooLarge('a body', limits.jsonBytesMax);
  };

  startExchange(
    egress,
    input.outbound,
    { timeouts, signal, faults, workspaceId },
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
        else if (Number(received['content-length'] ?? 0) > limits.jsonBytesMax) {
          throw faults().tooLarge('a body', limits.jsonBytesMax);
        }
      },
      data: (chunk) => {
        if (mode === 'undecided' && flow) {
          mode = 'whole';
          // Servers that forget the content type: an SSE line starts with a field name or a colon, JSON and HTML do not.
          if (bytes === 0 && /^\uFEFF?\s*(data|event|id|retry)?:/.test(chunk.toString('utf8', 0, 64)))
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

/** A successful body: JSON of the shape that was asked for, or a stream made of it; throws `upstream_invalid_response`. */
function readBody(input: AttemptInput, status: number, headers: IncomingHttpHeaders, bytes: Buffer): AttemptResult {
  const { call, translation, faults } = input;
  if (bytes.length === 0) throw faults().invalid(`answered ${status} with an empty body`);
  const parsed = parseJson(bytes);
  if (parsed === undefined) throw faults().invalid(`answered ${status} with a body that is not JSON`, bytes);
  const error = asRecord(parsed)['error'];
  if (error !== undefined && error !== null) {
    return asError(input, headers, translation.decodeError(status, bytes.toString()));
  }
  const decoded = translation.decode ? decodeBody(input, parsed) : parsed;
  const body = asRecord(decoded);
  const list = answerLists[call.operation];
  if (!Array.isArray(body[list]))
    throw faults().invalid(`answered ${status} with JSON that has no "${list}" list`, bytes);
  const read = {
    usage: readUsage(body['usage']) ?? readTokenUsage(body['usage']),
    model: typeof body['model'] === 'string' ? body['model'] : null,
    finishReason: readFinishReason(body['choices']),
  };
  const head = headOf(input, status, headers);
  if (call.stream) {
    const payloads = jsonToPayloads(call.operation, body, call.includeUsage);
    if (payloads.length === 0) throw faults().invalid(`answered ${status} without a single choice`, bytes);
    const done: StreamSummary = { ...read, complete: true, firstEventMs: 0, error: null };
    const streamed = { usage: null, model: null, finishReason: null, kind: 'stream' as const };
    return { answer: { ...head, ...streamed, events: once(payloads), done: Promise.resolve(done) }, errorCode: null };
  }
  const changed = withBase64Vectors(call, body) ?? (decoded === parsed ? null : decoded);
  const out = changed === null ? bytes : Buffer.from(JSON.stringify(changed));
  return { answer: { ...head, ...read, kind: 'json', body: out, contentType: 'application/json' }, errorCode: null };
}

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
