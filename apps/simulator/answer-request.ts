import { randomBytes } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createCallAnswerer } from './answer-call.ts';
import { describeSimulator } from './describe-simulator.ts';
import { createExchange, type Exchange } from './exchange.ts';
import type { SimulatorOptions } from './options.ts';
import { createRateLimit, type Allowance } from './rate-limit.ts';
import { readBody } from './read-body.ts';
import { sendJson } from './send-answer.ts';
import type { Stats } from './stats.ts';
import { openai } from './wire/openai/openai.ts';
import { Refusal, type Failure, type WireFormat } from './wire/wire-format.ts';

const wires: readonly WireFormat[] = [openai];

/** Answers every request of one simulator: the route, the key, the limit; then the call itself (answer-call.ts). */
export function createRequestAnswerer({ options, stats }: { options: SimulatorOptions; stats: Stats }) {
  const calls = createCallAnswerer({ options, stats });
  const { requestsPerMinute, clock } = options;
  const rateLimit = requestsPerMinute > 0 ? createRateLimit({ requestsPerMinute, clock }) : undefined;
  const requestIdPrefix = `req_${randomBytes(10).toString('hex')}`;
  let requestCount = 0;

  const resetStats = (): void => {
    stats.reset();
    calls.resetAttempts();
  };

  const answer = (request: IncomingMessage, response: ServerResponse): void => {
    const path = pathOf(request.url ?? '/');
    const method = request.method ?? 'GET';
    const wire = wires.find((format) => format.owns(path));
    if (wire === undefined) return answerOwn(request, response, method, path);

    const decode = wire.operations.get(path);
    const resource = decode === undefined ? wire.read(path) : undefined;
    const route = decode === undefined ? (resource?.route ?? 'other') : `POST ${path}`;
    const requestId = `${requestIdPrefix}${(requestCount++).toString(16).padStart(12, '0')}`;
    const timing = { processingMs: 0 };
    let allowance: Allowance | undefined;
    const headers = (): string[] => wire.headers({ requestId, processingMs: timing.processingMs, allowance });
    const exchange = createExchange(request, response, { route, stats, headers });

    const credential = wire.credential(request.headers);
    const refused = checkCredential(credential, options);
    if (refused !== undefined) return refuse(exchange, wire, refused);
    if (decode === undefined) {
      if (resource === undefined || method !== 'GET') return refuse(exchange, wire, unknownUrl(method, path));
      return guard(exchange, wire, () => sendJson(exchange, resource.body()));
    }
    if (method !== 'POST') return refuse(exchange, wire, wrongMethod(method, path), ['allow', 'POST']);
    allowance = rateLimit?.take(credential);
    if (allowance !== undefined && allowance.retryAfterMs > 0) {
      return refuse(exchange, wire, limited, retryHeaders(allowance.retryAfterMs));
    }
    return readBody(request, options.bodyMaxBytes, (body) => {
      guard(exchange, wire, () => {
        if (body instanceof Refusal) throw body;
        const call = decode({ method, path, headers: request.headers, text: body.text, json: body.json });
        const work = calls.answer({ call, wire, exchange, credential, headers: request.headers, timing });
        work?.catch((error: unknown) => giveUp(exchange, error));
      });
    });
  };

  /** Runs what may refuse the request; anything else that is thrown is a bug of ours. */
  const guard = (exchange: Exchange, wire: WireFormat, run: () => void): void => {
    try {
      run();
    } catch (error) {
      if (error instanceof Refusal) refuse(exchange, wire, error.failure);
      else giveUp(exchange, error);
    }
  };

  const giveUp = (exchange: Exchange, error: unknown): void => {
    options.logger?.error({ err: error }, 'answer failed');
    exchange.reset();
  };

  /** What belongs to the simulator and not to a provider; needs no key. */
  const answerOwn = (request: IncomingMessage, response: ServerResponse, method: string, path: string): void => {
    const route = path === redirectedPath ? redirectedPath : `${method} ${path}`;
    const own = ownRoutes.get(route);
    const exchange = createExchange(request, response, {
      route: own === undefined ? 'other' : route,
      stats,
      headers: () => [],
    });
    if (own === undefined) return refuse(exchange, openai, unknownUrl(method, path));
    return sendJson(exchange, own());
  };
  const ownRoutes = new Map<string, () => string>([
    ['GET /', () => JSON.stringify(describeSimulator(), null, 2)],
    ['GET /health', () => '{"status":"ok"}'],
    ['GET /stats', () => JSON.stringify(stats.snapshot())],
    [
      'POST /stats/reset',
      () => {
        resetStats();
        return '{"status":"ok"}';
      },
    ],
    [redirectedPath, () => '{"redirected":true}'],
  ]);

  return { answer, resetStats };
}

/** Where the fault `redirect` leads: whoever follows it is counted under this route. */
const redirectedPath = '/redirected';

function pathOf(url: string): string {
  const query = url.indexOf('?');
  return query === -1 ? url : url.slice(0, query);
}

function refuse(exchange: Exchange, wire: WireFormat, failure: Failure, own: readonly string[] = []): void {
  exchange.reply(failure.status, 'application/json', wire.errorBody(failure), own);
}

/** Any key will do but none, `invalid`, and all others when one is required. */
function checkCredential(credential: string, { requiredKey }: SimulatorOptions): Failure | undefined {
  if (credential === '') {
    const message =
      "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";
    return { status: 401, message };
  }
  if (credential !== 'invalid' && (requiredKey === undefined || credential === requiredKey.reveal())) return undefined;
  const message = `Incorrect API key provided: ${'*'.repeat(8)}${credential.length >= 12 ? credential.slice(-4) : ''}.`;
  return { status: 401, message, code: 'invalid_api_key' };
}

const limited: Failure = {
  status: 429,
  message: 'Rate limit reached for requests: this key has used its requests per minute.',
  type: 'requests',
  code: 'rate_limit_exceeded',
};

function retryHeaders(ms: number): string[] {
  return ['retry-after', String(Math.ceil(ms / 1_000)), 'retry-after-ms', String(ms)];
}

function unknownUrl(method: string, path: string): Failure {
  return { status: 404, message: `Invalid URL (${method} ${path})`, code: 'unknown_url' };
}

function wrongMethod(method: string, path: string): Failure {
  const message = `Not allowed to ${method} on ${path}. (HINT: Perhaps you meant to use a different HTTP method?)`;
  return { status: 405, message, code: 'method_not_supported' };
}
