import type { IncomingHttpHeaders } from 'node:http';
import { Readable } from 'node:stream';
import type { Attempt, ForwardRequest, Limits, Relayed, RelayedAnswer, Target } from '#libs/calls/call.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { decodeOpenAiError } from '#libs/providers/openai-error.ts';
import type { OutboundRequest, Provider, Relay, RelayArea } from '#libs/providers/provider.ts';
import { admittedHeaders, pickHeaders, findRequestId } from '../answers/answer-headers.ts';
import { authorize } from '../authorize.ts';
import { checkOrigin, getSecrets } from '../credential.ts';
import type { Egress } from '../egress/egress.ts';
import { errorBody } from '../error-body.ts';
import { startExchange, type Flow, type SendWatch, type Sink } from '../egress/exchange.ts';
import { createLazyFaults, type Faults } from '../provider-faults.ts';
import { openRelayMeter, type RelayMeter } from './relay-meter.ts';

/** A pass-through call that was checked and is ready to be sent. */
export type RelayInput = {
  relayed: Relayed;
  provider: Provider;
  /** How the areas of the provider are called. */
  area: Relay;
  request: ForwardRequest;
  target: Target;
  egress: Egress;
  clock: Clock;
  timeouts: Timeouts;
  limits: Limits;
  faults: () => Faults;
  secrets: string[];
  /** The attempts of the call; not changed here. */
  attempts: readonly Attempt[];
};

/** For a client that does not read: one more piece can arrive, and a workspace can have thousands of such calls. */
const bufferedBytesMax = 65_536;

/**
 * Makes a pass-through call ready to be sent. Throws everything that can be refused before a connection is opened:
 * unsupported_operation, or a destination that is not allowed.
 */
export function prepareRelay(
  deps: Pick<RelayInput, 'egress' | 'clock' | 'timeouts' | 'limits' | 'attempts'> & {
    providers: (id: string) => Provider | undefined;
  },
  request: ForwardRequest & { relayed: Relayed },
  target: Target,
): RelayInput {
  const { egress, clock, timeouts, limits, attempts } = deps;
  const provider = deps.providers(target.provider);
  const area = provider?.relay;
  if (!provider || !area?.areas.includes(request.operation as RelayArea)) {
    throw new GatewayError(
      'unsupported_operation',
      'unsupported_operation',
      `The provider ${target.provider} does not support ${request.operation}.`,
    );
  }
  egress.check(target.baseUrl);
  const secrets = getSecrets(target);
  const faults = createLazyFaults(target.label, secrets);
  const { relayed } = request;
  return { relayed, provider, area, request, target, egress, clock, timeouts, limits, faults, secrets, attempts };
}

/**
 * Makes one call to a pass-through area of the target's provider. Resolves when the headers of the answer have arrived.
 * There is one attempt, because a body that is a stream cannot be sent twice; only a request that reads is sent once
 * more if the provider had closed the idle socket. Rejects with GatewayError like `attemptCall`. A
 * provider's error is an answer, in OpenAI's format and without any trace of the credential.
 */
export async function relay(input: RelayInput, watch: SendWatch): Promise<RelayedAnswer> {
  const { provider, request, target, egress, clock, timeouts, faults, secrets } = input;
  const { signal } = request;
  const outbound = encode(input);
  await authorize(provider, outbound, target, { egress, clock, signal, faults, secrets });
  const reader = new RelayReader(input);
  startExchange(egress, outbound, { timeouts, signal, faults, workspaceId: target.workspaceId, watch }, reader);
  return await reader.answer;
}

/** Passes an answer on as it arrives. The body of an error is read whole. */
class RelayReader implements Sink {
  readonly #input: RelayInput;
  readonly #answer = Promise.withResolvers<RelayedAnswer>();
  readonly #done = Promise.withResolvers<Awaited<RelayedAnswer['done']>>();
  readonly #errorChunks: Buffer[] = [];
  #bytes = 0;
  #status = 0;
  #headers: IncomingHttpHeaders = {};
  #opened: { flow: Flow; body: Readable; meter: RelayMeter } | undefined;

  constructor(input: RelayInput) {
    this.#input = input;
  }

  get answer(): Promise<RelayedAnswer> {
    return this.#answer.promise;
  }

  head(status: number, headers: IncomingHttpHeaders, flow: Flow): void {
    this.#status = status;
    this.#headers = headers;
    if (status < 400) this.#open(flow);
  }

  data(chunk: Buffer): void {
    const { limits, faults } = this.#input;
    this.#bytes += chunk.length;
    if (this.#opened === undefined) {
      if (this.#bytes > limits.errorBytesMax) throw faults().tooLarge('an error', limits.errorBytesMax);
      this.#errorChunks.push(chunk);
      return;
    }
    if (this.#bytes > limits.streamBytesMax) throw faults().tooLarge('a body', limits.streamBytesMax);
    const { flow, body, meter } = this.#opened;
    meter.push(chunk);
    if (!body.push(chunk)) flow.pause();
  }

  end(): void {
    if (this.#opened === undefined) {
      const bytes = Buffer.concat(this.#errorChunks, this.#bytes);
      return this.#answer.resolve(errorAnswer(this.#input, this.#status, this.#headers, bytes));
    }
    this.#opened.body.push(null);
    this.#finish(this.#opened.meter, null);
  }

  fail(error: GatewayError): void {
    if (this.#opened === undefined) return this.#answer.reject(error);
    this.#finish(this.#opened.meter, error);
    this.#opened.body.destroy(error);
  }

  #open(flow: Flow): void {
    const { request, faults, secrets } = this.#input;
    const received = this.#headers;
    const meter = openRelayMeter(received['content-type'] ?? '', this.#input, request.memory);
    const body = new Readable({
      highWaterMark: bufferedBytesMax,
      read: () => flow.resume(),
      destroy: (error, callback) => {
        flow.abort(faults().callerLeft()); // This has no effect after the end.
        callback(error);
      },
    });
    // The reader gets the error. Until there is a reader, no other listener would handle it.
    body.on('error', () => {});
    this.#opened = { flow, body, meter };
    const headers = { ...admittedHeaders(received, secrets), ...contentHeaders(received) };
    const head = headOf(this.#input, this.#status, received);
    this.#answer.resolve({ ...head, headers, body, done: this.#done.promise });
  }

  #finish(meter: RelayMeter, error: GatewayError | null): void {
    this.#done.resolve({ ...meter.read(), error });
  }
}

/** The request to the provider, without its credential. */
function encode({ relayed, provider, area, request, target }: RelayInput): OutboundRequest {
  const model = target.model ?? request.model;
  const outbound = area.encode(
    {
      area: request.operation as RelayArea,
      method: relayed.method,
      path: relayed.path,
      accept: relayed.accept,
      model,
      headers: pickHeaders(request.headers, provider.clientHeaders),
      ...relayed.send(model),
    },
    target,
  );
  checkOrigin(target, outbound.origin);
  outbound.headers.push('accept-encoding', 'identity', 'user-agent', 'sluice');
  if (request.traceparent !== undefined) outbound.headers.push('traceparent', request.traceparent);
  return outbound;
}

const headOf = ({ provider, attempts, secrets }: RelayInput, status: number, headers: IncomingHttpHeaders) => ({
  kind: 'relayed' as const,
  status,
  providerRequestId: findRequestId(headers, provider.requestIdHeaders, secrets),
  attempts,
  usage: null,
  model: null,
  finishReason: null,
});

function errorAnswer(input: RelayInput, status: number, headers: IncomingHttpHeaders, bytes: Buffer): RelayedAnswer {
  const { secrets } = input;
  const { body, error } = errorBody(status, bytes, () => decodeOpenAiError(status, bytes.toString()), secrets);
  return {
    ...headOf(input, status, headers),
    headers: {
      ...admittedHeaders(headers, secrets),
      'content-type': 'application/json',
      'content-length': String(body.length),
    },
    body: Readable.from([body], { objectMode: false }),
    errorCode: error.error.code,
    done: Promise.resolve({ usage: null, model: null, error: null }),
  };
}

/** Content types that browsers neither run nor render as a page. The provider's answer keeps them. */
const inertTypes: ReadonlySet<string> = new Set([
  'application/json',
  'application/jsonl',
  'application/octet-stream',
  'application/x-ndjson',
  'application/x-subrip',
  'image/gif',
  'image/jpeg',
  'image/png',
  'image/webp',
  'text/event-stream',
  'text/plain',
  'text/vtt',
]);

/** Headers that describe the body. A content type that browsers could run becomes a download of unknown bytes. */
function contentHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const { 'content-type': type = '', 'content-length': length, 'content-disposition': disposition } = headers;
  const result: Record<string, string> = {};
  if (length !== undefined) result['content-length'] = length;
  const [essence = ''] = type.split(';', 1);
  const name = essence.trim().toLowerCase();
  if (inertTypes.has(name) || /^audio\/[\w.+-]+$/.test(name)) {
    result['content-type'] = type;
    if (disposition !== undefined) result['content-disposition'] = disposition;
  } else {
    result['content-type'] = 'application/octet-stream';
    result['content-disposition'] = 'attachment';
  }
  return result;
}
