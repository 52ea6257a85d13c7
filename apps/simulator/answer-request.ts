import { randomBytes } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createCallAnswerer } from './answer-call.ts';
import { createWireFinder } from './choose-wire.ts';
import { createExchange, type Exchange } from './exchange.ts';
import type { SimulatorOptions } from './options.ts';
import { createRateLimit, type Allowance } from './faults/rate-limit.ts';
import { parseForm, parseJsonBody, readBody } from './read-body.ts';
import { sendBody } from './send-answer.ts';
import type { Stats } from './stats.ts';
import { openai } from './wire/openai/openai.ts';
import { Refusal, type Call, type Failure, type Received, type Route, type WireFormat } from './wire/wire-format.ts';
import { describeFaults } from './faults/faults.ts';
import { latencyForm } from './faults/latency.ts';

/** Answers every request to one simulator: checks the route, key and limit, then answers the call (answer-call.ts). */
export function createRequestAnswerer({ options, stats }: { options: SimulatorOptions; stats: Stats }) {
  const calls = createCallAnswerer({ options, stats });
  const wireOf = createWireFinder(options);
  const { requestsPerMinute, callsMax = 0, clock } = options;
  const rateLimit = requestsPerMinute > 0 ? createRateLimit({ requestsPerMinute, clock }) : undefined;
  const requestIdPrefix = `req_${randomBytes(10).toString('hex')}`;
  let requestCount = 0;

  const resetStats = (): void => {
    stats.reset();
    calls.resetAttempts();
  };

  const ownRoutes = listOwnRoutes(stats, resetStats);

  const answer = (request: IncomingMessage, response: ServerResponse): void => {
    const url = request.url ?? '/';
    const queryAt = url.indexOf('?');
    const path = queryAt === -1 ? url : url.slice(0, queryAt);
    const query = queryAt === -1 ? '' : url.slice(queryAt + 1);
    const method = request.method ?? 'GET';
    const wire = wireOf(path, query, request.headers);
    if (wire === undefined) return answerOwn(request, response, method, path);

    const route = wire.find(method, path);
    const requestId = `${requestIdPrefix}${(requestCount++).toString(16).padStart(12, '0')}`;
    const timing = { processingMs: 0 };
    let allowance: Allowance | undefined;
    const headers = (): string[] => wire.headers({ requestId, processingMs: timing.processingMs, allowance });
    const exchange = createExchange(request, response, { route: route?.name ?? 'other', stats, headers, requestId });

    const credential = wire.credential(request.headers, query);
    const refused = credential === undefined ? undefined : checkCredential(wire, credential, options);
    if (refused !== undefined) return refuse(exchange, wire, refused);
    if (route === undefined) return refuse(exchange, wire, unknownUrl(method, path));
    if ('allow' in route) return refuse(exchange, wire, wrongMethod(method, path, route.allow));
    const { headers: sent } = request;
    const received = (bytes: Uint8Array): Received => ({
      method,
      path,
      query,
      headers: sent,
      bytes,
      text: '',
      json: {},
    });
    if ('resource' in route) {
      return guard(exchange, wire, () => sendBody(exchange, route.resource(received(nothing))));
    }
    allowance = rateLimit?.take(credential ?? '');
    const rejected = limitedBy(allowance, callsMax > 0 && stats.inFlight() > callsMax, wire);
    if (rejected !== undefined) return refuse(exchange, wire, rejected);
    const respond = (call: Call): void => {
      const work = calls.answer({ call, wire, exchange, credential: credential ?? '', headers: sent, timing });
      work?.catch((error: unknown) => settle(exchange, wire, error));
    };
    return readBody(request, options.bodyMaxBytes, (body) => {
      guard(exchange, wire, () => {
        if (body instanceof Refusal) throw body;
        const call = decode(route, received(body), body, options.check);
        if (!(call instanceof Promise)) return respond(call);
        call.then(respond).catch((error: unknown) => settle(exchange, wire, error));
      });
    });
  };

  /** Runs a step that can reject the request. */
  const guard = (exchange: Exchange, wire: WireFormat, run: () => void): void => {
    try {
      run();
    } catch (error) {
      settle(exchange, wire, error);
    }
  };

  /** Any error that is not a Refusal is a bug in the simulator. */
  const settle = (exchange: Exchange, wire: WireFormat, error: unknown): void => {
    if (error instanceof Refusal) return refuse(exchange, wire, error.failure);
    options.logger?.error({ err: error }, 'answer failed');
    exchange.reset();
  };

  /** The simulator's own routes, which do not require a key. */
  const answerOwn = (request: IncomingMessage, response: ServerResponse, method: string, path: string): void => {
    const route = path === redirectedPath ? redirectedPath : `${method} ${path}`;
    const own = ownRoutes.get(route);
    const exchange = createExchange(request, response, {
      route: own === undefined ? 'other' : route,
      stats,
      headers: () => [],
    });
    if (own === undefined) return refuse(exchange, openai, unknownUrl(method, path));
    return sendBody(exchange, own());
  };
  return { answer, resetStats };
}

/** The bodies of the simulator's own routes. */
const listOwnRoutes = (stats: Stats, resetStats: () => void) =>
  new Map<string, () => string>([
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

/** The target of the fault `redirect`: requests that follow it are counted under this route. */
const redirectedPath = '/redirected';
const nothing = Buffer.alloc(0);

/** Reads the body in the form that the route needs. Returns a promise only for multipart bodies and signature checks. */
function decode(
  route: Extract<Route, { call: unknown }>,
  received: Received,
  body: Buffer,
  check: SimulatorOptions['check'],
): Call | Promise<Call> {
  if (route.reads === 'json') {
    const { text, json } = parseJsonBody(body);
    received.text = text;
    received.json = json;
    const checked = check?.(route.name, received);
    if (checked !== undefined) return checked.then(() => route.call(received));
    try {
      return route.call(received);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      const message = 'The request lacks a member, or has one of the wrong type.';
      throw new Refusal({ status: 400, message }, { cause: error });
    }
  }
  if (route.reads !== 'form') return route.call(received);
  return parseForm(body, received.headers['content-type']).then((form) => route.call({ ...received, form }));
}

function refuse(exchange: Exchange, wire: WireFormat, failure: Failure): void {
  const body = failure.body ?? wire.errorBody(failure, exchange.requestId);
  exchange.reply(failure.status, 'application/json', body, [
    ...(failure.headers ?? []),
    ...(wire.errorHeaders?.(failure) ?? []),
  ]);
}

/** Accepts any key except an empty one and `invalid`; if a key is required, only that one. */
function checkCredential(wire: WireFormat, credential: string, { requiredKey }: SimulatorOptions): Failure | undefined {
  if (credential === '') return wire.refuseCredential('missing', '');
  if (credential !== 'invalid' && (requiredKey === undefined || credential === requiredKey.reveal())) return undefined;
  const shown = `${'*'.repeat(8)}${credential.length >= 12 ? credential.slice(-4) : ''}`;
  return wire.refuseCredential('wrong', shown);
}

function limitedBy(allowance: Allowance | undefined, isFull: boolean, wire: WireFormat): Failure | undefined {
  if (allowance !== undefined && allowance.retryAfterMs > 0)
    return limited('this key has used its requests per minute.', allowance.retryAfterMs, wire);
  return isFull ? limited('too many requests are in flight.', 1_000, wire) : undefined;
}

function limited(why: string, retryAfterMs: number, wire: WireFormat): Failure {
  const headers = ['retry-after', String(Math.ceil(retryAfterMs / 1_000)), 'retry-after-ms', String(retryAfterMs)];
  return {
    status: 429,
    message: `Rate limit reached for requests: ${why}`,
    type: 'requests',
    code: 'rate_limit_exceeded',
    retryAfterMs,
    headers: wire.retryInBody === true ? [] : headers,
  };
}

function unknownUrl(method: string, path: string): Failure {
  return { status: 404, message: `Invalid URL (${method} ${path})`, code: 'unknown_url' };
}

function wrongMethod(method: string, path: string, allow: string): Failure {
  const message = `Not allowed to ${method} on ${path}. (HINT: Perhaps you meant to use a different HTTP method?)`;
  return { status: 405, message, code: 'method_not_supported', headers: ['allow', allow] };
}

/** GET /: describes the simulator for people. The faults are read from their table. */
function describeSimulator() {
  return {
    name: 'sluice simulator',
    what: 'Simulates a language-model provider: deterministic answers, configurable latency, configurable faults.',
    routes: {
      openai: [
        'POST /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses, /v1/moderations, /v1/rerank',
        'POST /v1/images/{generations|edits|variations}, /v1/audio/{speech|transcriptions|translations}',
        'GET /v1/models, /v1/models/{id}',
        'POST and GET /v1/files; GET and DELETE /v1/files/{id}; GET /v1/files/{id}/content',
        'POST and GET /v1/fine_tuning/jobs; GET /v1/fine_tuning/jobs/{id}, …/events, …/checkpoints; POST …/{cancel|pause|resume}',
        'ANY /v1/assistants/**, /v1/threads/**, /v1/vector_stores/**, /v1/responses/**, /v1/conversations/**: return what was sent',
      ],
      anthropic: [
        'POST /v1/messages, /v1/messages/count_tokens',
        'GET /v1/models, /v1/models/{id} with the header anthropic-version',
      ],
      own: ['GET /', 'GET /health', 'GET /stats', 'POST /stats/reset'],
    },
    keys: 'Any key except `invalid` is accepted, unless the simulator was started with a required key.',
    models: {
      'sim-echo': 'answers with the last user message',
      'sim-agent':
        'runs the commands in backticks of the last user message, one per turn, with the shell tool it is offered',
      'sim-reflect': 'answers with the text of the request body, byte for byte; `reflected` contains path and headers',
      'any other name': 'answers with deterministic prose, JSON or tool calls: equal requests have equal answers',
      'sim-tune-fail': 'its fine-tuning jobs fail in the middle of training',
      tools: 'a tool is called if the last user message names it or tool_choice requires it',
    },
    model_options: {
      form: 'NAME+OPTION+OPTION, like gpt-4o+80ms+40tps+200tok; `__` is the same as `+`',
      latency: latencyForm,
      tps: 'tokens per second of a stream',
      tok: 'tokens of the answer',
      think: 'thinks before it answers, in the form of the provider; reasoning tokens are counted',
      cached: 'half of the prompt was read from a cache',
      preamble: 'writes a few words before it calls a tool',
      refuse: 'declines to answer, in the form of the provider',
      'training:2s': 'how long a fine-tuning job of the model takes (default: 10 s, SIMULATOR_TRAINING)',
      '3000000bytes': 'the size of generated audio',
    },
    headers: {
      'x-simulator-latency': 'a latency for this request',
      'x-simulator-fault': 'a fault for this request, like 429 or reset-then-ok-1',
      'x-simulator-training': 'the duration of the fine-tuning job that this request creates',
      'x-simulator-bytes': 'the size of the audio that this request generates',
      'x-simulator-count': 'count this call in GET /stats by `user` or prompt',
    },
    ...describeFaults(),
  };
}
