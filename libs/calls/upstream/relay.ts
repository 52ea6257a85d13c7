import type { IncomingHttpHeaders } from 'node:http';
import { Readable } from 'node:stream';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import { decodeOpenAiError } from '#libs/providers/openai-compatible.ts';
import type { Provider, RelayCall } from '#libs/providers/provider.ts';
import { admittedHeaders, pickHeaders, requestIdOf } from './answer-headers.ts';
import { defaultTimeouts, type Attempt, type Target, type Timeouts, type Usage } from '#libs/calls/call.ts';
import { checkOrigin, secretsOf } from './credential.ts';
import { authorize } from './authorize.ts';
import type { Egress } from './egress.ts';
import { errorBody } from './error-body.ts';
import { startExchange, type Flow } from './exchange.ts';
import { lazyFaultsOf } from './provider-faults.ts';
import { openRelayMeter, type RelayMeter } from './relay-meter.ts';

/** A call that is forwarded whole. `headers` are all of the client's, lower case: only what the provider admits goes out. */
export type RelayRequest = RelayCall & {
  signal: AbortSignal;
  timeouts?: Partial<Timeouts>;
  /** To which the copy of the answer is charged that is read for its usage. */
  memory?: MemoryLease | undefined;
  /** The provider had closed the idle socket: what only reads goes out once more, as another attempt. */
  onResent?: () => void;
};

export type RelayAnswer = {
  status: number;
  /** Fit to be sent to the client. */
  headers: Record<string, string>;
  /** The provider's bytes as they come, with back-pressure; destroying it cancels the call. Of an error: a whole body. */
  body: Readable;
  providerRequestId: string | null;
  attempt: Attempt;
  /** When the body has ended, however: what it said of usage. Never rejects. */
  done: Promise<{ usage: Usage | null; model: string | null; error: GatewayError | null }>;
};

type Deps = {
  egress: Egress;
  clock: Clock;
  providers: (id: string) => Provider | undefined;
  errorBytesMax: number;
  bodyBytesMax: number;
};

type Opened = { flow: Flow; body: Readable; meter: RelayMeter; finish: (error: GatewayError | null) => void };

/** For a client that does not read: one more piece may come, and a workspace may have thousands of such calls. */
const bufferedBytesMax = 65_536;

/**
 * Makes one call to a pass-through area of the target's provider; resolves when the answer's headers are there.
 * One attempt, but for `onResent`: a body that is a stream cannot be sent twice. Rejects with GatewayError as `forward` does; a provider's
 * error is an answer, in OpenAI's four keys and without any trace of the credential.
 */
export async function relay(deps: Deps, request: RelayRequest, target: Target): Promise<RelayAnswer> {
  const { egress, clock } = deps;
  const provider = deps.providers(target.provider);
  if (!provider?.relay?.areas.includes(request.area)) {
    throw new GatewayError(
      'unsupported_operation',
      'unsupported_operation',
      `The provider ${target.provider} does not support ${request.area}.`,
    );
  }
  egress.check(target.baseUrl);
  const secrets = secretsOf(target);
  const faults = lazyFaultsOf(target.label, secrets);
  const timeouts = { ...defaultTimeouts, ...request.timeouts };
  const { signal } = request;
  const headers = pickHeaders(request.headers, provider.clientHeaders);
  const outbound = provider.relay.encode({ ...request, headers }, target);
  checkOrigin(target, outbound.origin);
  outbound.headers.push('accept-encoding', 'identity', 'user-agent', 'sluice');
  await authorize(provider, outbound, target, { egress, clock, signal, faults, secrets });

  const { promise, resolve, reject } = Promise.withResolvers<RelayAnswer>();
  let startedAt = clock.now();
  let start = performance.now();
  const errorChunks: Buffer[] = [];
  let errorBytes = 0;
  let bodyBytes = 0;
  let status = 0;
  let received: IncomingHttpHeaders = {};
  let opened: Opened | undefined;

  const attempt = (errorCode: string | null): Attempt => ({
    startedAt,
    durationMs: performance.now() - start,
    status,
    errorCode,
  });
  const head = () => ({ status, providerRequestId: requestIdOf(received, provider.requestIdHeaders, secrets) });

  const answerError = (): void => {
    const bytes = Buffer.concat(errorChunks, errorBytes);
    const { body, error } = errorBody(status, bytes, () => decodeOpenAiError(status, bytes.toString()), secrets);
    resolve({
      ...head(),
      headers: {
        ...admittedHeaders(received, secrets),
        'content-type': 'application/json',
        'content-length': String(body.length),
      },
      body: Readable.from([body], { objectMode: false }),
      attempt: attempt(error.error.code),
      done: Promise.resolve({ usage: null, model: null, error: null }),
    });
  };

  const open = (flow: Flow): Opened => {
    const done = Promise.withResolvers<Awaited<RelayAnswer['done']>>();
    const meter = openRelayMeter(received['content-type'] ?? '', request.memory);
    const finish = (error: GatewayError | null): void => done.resolve({ ...meter.read(), error });
    const body = new Readable({
      highWaterMark: bufferedBytesMax,
      read: () => flow.resume(),
      destroy: (error, callback) => {
        flow.abort(faults().callerLeft()); // after the end this does nothing
        callback(error);
      },
    });
    body.on('error', () => {}); // whoever reads it is told; before that, nobody listens
    resolve({
      ...head(),
      headers: { ...admittedHeaders(received, secrets), ...contentHeaders(received) },
      body,
      attempt: attempt(null),
      done: done.promise,
    });
    return { flow, body, meter, finish };
  };

  startExchange(
    egress,
    outbound,
    { timeouts, signal, faults, workspaceId: target.workspaceId },
    {
      resent: () => {
        startedAt = clock.now();
        start = performance.now();
        request.onResent?.();
      },
      head: (code, headersReceived, flow) => {
        status = code;
        received = headersReceived;
        if (code >= 300 && code < 400) throw faults().redirect(code);
        const encoding = received['content-encoding'];
        if (encoding !== undefined && encoding !== '' && encoding !== 'identity') {
          throw faults().invalid('sent a compressed answer although only identity was accepted');
        }
        if (code < 400) opened = open(flow);
      },
      data: (chunk) => {
        if (!opened) {
          errorBytes += chunk.length;
          if (errorBytes > deps.errorBytesMax) throw faults().tooLarge('an error', deps.errorBytesMax);
          errorChunks.push(chunk);
          return;
        }
        bodyBytes += chunk.length;
        if (bodyBytes > deps.bodyBytesMax) throw faults().tooLarge('a body', deps.bodyBytesMax);
        opened.meter.push(chunk);
        if (!opened.body.push(chunk)) opened.flow.pause();
      },
      end: () => {
        if (!opened) return answerError();
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

function contentHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const result: Record<string, string> = {};
  for (const name of ['content-type', 'content-length', 'content-disposition'] as const) {
    const value = headers[name];
    if (value !== undefined) result[name] = value;
  }
  return result;
}
