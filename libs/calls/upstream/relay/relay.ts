import type { IncomingHttpHeaders } from 'node:http';
import { Readable } from 'node:stream';
import type { Attempt, ForwardRequest, Limits, Relayed, RelayedAnswer, Target } from '#libs/calls/call.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { decodeOpenAiError } from '#libs/providers/openai-compatible.ts';
import type { OutboundRequest, Provider, Relay, RelayArea } from '#libs/providers/provider.ts';
import { admittedHeaders, pickHeaders, findRequestId } from '../answers/answer-headers.ts';
import { authorize } from '../authorize.ts';
import { checkOrigin, getSecrets } from '../credential.ts';
import type { Egress } from '../egress/egress.ts';
import { errorBody } from '../error-body.ts';
import { startExchange, type Flow, type SendWatch } from '../egress/exchange.ts';
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

type Opened = { flow: Flow; body: Readable; meter: RelayMeter; finish: (error: GatewayError | null) => void };

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
  const { provider, request, target, egress, clock, timeouts, limits, faults, secrets } = input;
  const { signal } = request;
  const outbound = encode(input);
  await authorize(provider, outbound, target, { egress, clock, signal, faults, secrets });

  const { promise, resolve, reject } = Promise.withResolvers<RelayedAnswer>();
  const errorChunks: Buffer[] = [];
  let errorBytes = 0;
  let bodyBytes = 0;
  let status = 0;
  let received: IncomingHttpHeaders = {};
  let opened: Opened | undefined;

  const open = (flow: Flow): Opened => {
    const done = Promise.withResolvers<Awaited<RelayedAnswer['done']>>();
    const meter = openRelayMeter(received['content-type'] ?? '', input, request.memory);
    const finish = (error: GatewayError | null): void => done.resolve({ ...meter.read(), error });
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
    const headers = { ...admittedHeaders(received, secrets), ...contentHeaders(received) };
    resolve({ ...headOf(input, status, received), headers, body, done: done.promise });
    return { flow, body, meter, finish };
  };

  startExchange(
    egress,
    outbound,
    { timeouts, signal, faults, workspaceId: target.workspaceId, watch },
    {
      head: (code, headersReceived, flow) => {
        status = code;
        received = headersReceived;
        if (code < 400) opened = open(flow);
      },
      data: (chunk) => {
        if (!opened) {
          errorBytes += chunk.length;
          if (errorBytes > limits.errorBytesMax) throw faults().tooLarge('an error', limits.errorBytesMax);
          errorChunks.push(chunk);
          return;
        }
        bodyBytes += chunk.length;
        if (bodyBytes > limits.streamBytesMax) throw faults().tooLarge('a body', limits.streamBytesMax);
        opened.meter.push(chunk);
        if (!opened.body.push(chunk)) opened.flow.pause();
      },
      end: () => {
        if (!opened) return resolve(errorAnswer(input, status, received, Buffer.concat(errorChunks, errorBytes)));
        opened.body.push(null);
        opened.finish(null);
      },
      fail: (error) => {
        if (!opened) return reject(error);
        opened.finish(error);
        opened.body.destroy(error);
      },
    },
  );
  return await promise;
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
