import express, {
  type ErrorRequestHandler,
  type Express,
  type Request,
  type RequestHandler,
  type Response,
} from 'express';
import { createBytePace } from '#libs/kernel/sharing/byte-pace.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Caller } from './caller.ts';
import { setCorsHeaders, type CorsOrigins } from './cors.ts';
import { clientAddressSetting, type ClientAddress } from './client-address.ts';
import { discardBody, hasBody } from './bodies/drain-request.ts';
import { sendError } from './answers/error-response.ts';
import { defaultJsonBodyLimits, readJsonBody, type JsonBodyLimits } from './bodies/json-body.ts';
import { getContext, openContext, readMetadata } from './request-context.ts';
import { requireScope } from './rights.ts';
import { toOwnPath } from './client-paths.ts';
import { checkRoutes, createQueryCheck, isOptional, plainPath, type Route } from './route.ts';

export type HttpAppDeps = {
  routes: readonly Route[];
  /** Throws unauthenticated. Returns a known key's caller synchronously, because awaiting a promise costs time per call. */
  authenticate: (request: Request) => Caller | Promise<Caller>;
  /** Determines where a request came from, for its events. */
  clientAddress?: ClientAddress;
  logger: Logger;
  /** Called once per request, when its response has ended or its connection has closed. */
  observe?: (end: RequestEnd) => void;
  /** Called before a known caller is answered with an error of its request. Must not throw. */
  onRefused?: (request: Request, caller: Caller, error: GatewayError) => void;
  jsonBody?: Partial<JsonBodyLimits>;
  /** How fast the large bodies of one workspace are read, all together. Absent: without a limit. */
  bodyBytesPerSecond?: number;
  /** The web pages that can call the API. Absent: none. */
  cors?: CorsOrigins | undefined;
};

/** `route` is the template, or `unmatched`. `status` is 499 if the client disconnected before the answer was complete. */
export type RequestEnd = { method: string; route: string; status: number; durationMs: number };

/**
 * Creates the express application of a route table. Order per request: context (ids on the response), route,
 * authentication, scope, query, body, handler. Every failure ends in `sendError`. Throws if the table is invalid.
 */
export function createHttpApp(deps: HttpAppDeps): Express {
  checkRoutes(deps.routes);
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  app.enable('case sensitive routing');
  app.set('query parser', 'simple');

  app.set(clientAddressSetting, deps.clientAddress);
  app.use(openRequest(deps));
  for (const [path, routes] of byPath(deps.routes)) {
    const target = app.route(path);
    for (const route of routes) {
      const handler = serve(route, deps);
      if (route.method === 'GET') target.get(handler);
      else if (route.method === 'POST') target.post(handler);
      else if (route.method === 'PUT') target.put(handler);
      else target.delete(handler);
    }
    target.all(refuseMethod(path, routes));
  }
  app.use((request) => {
    const shown = `${request.method} ${request.path.slice(0, 200)}`;
    throw new GatewayError('not_found', 'unknown_url', `Invalid URL (${shown})`);
  });
  const onError: ErrorRequestHandler = (error: unknown, request, response, _next) => {
    const { caller } = getContext(request);
    if (caller !== null && error instanceof GatewayError) deps.onRefused?.(request, caller, error);
    sendError(request, response, error, deps.logger);
  };
  app.use(onError);
  return app;
}

function openRequest({ logger, observe, cors, bodyBytesPerSecond }: HttpAppDeps): RequestHandler {
  const bodyPace = bodyBytesPerSecond === undefined ? null : createBytePace(bodyBytesPerSecond);
  return (request, response, next) => {
    response.on('close', () => {
      getContext(request).memory?.release();
      const end = toRequestEnd(request, response);
      observe?.(end);
      logRequest(logger, request, end);
    });
    const isPreflight = cors !== undefined && setCorsHeaders(cors, request, response);
    openContext(request, bodyPace);
    if (isPreflight) {
      response.statusCode = 204;
      response.end();
      return;
    }
    // Some clients join a base URL that ends with a slash and a path that begins with one.
    if (request.url.startsWith('//') || request.url.startsWith('/v1//'))
      request.url = request.url.replace(/^(\/v1)?\/+/, '$1/');
    readClientPath(request);
    next();
  };
}

function readClientPath(request: Request): void {
  try {
    request.url = toOwnPath(request.url, request.headers['x-goog-api-key'] !== undefined) ?? request.url;
  } catch (error) {
    // Google's clients read errors in Google's form.
    if (request.url.startsWith('/v1')) request.url = '/v1beta/models';
    throw error;
  }
}

function toRequestEnd(request: Request, response: Response): RequestEnd {
  const { route, startedMs } = getContext(request);
  return {
    method: request.method,
    route: route ?? 'unmatched',
    status: response.writableFinished ? response.statusCode : 499,
    durationMs: performance.now() - startedMs,
  };
}

const probed: ReadonlySet<string> = new Set(['/', '/health', '/health/live', '/health/ready', '/metrics']);

/**
 * Writes the line of a request. Probes and scrapers call every few seconds, and metrics count them already. The line of
 * a call that succeeded would repeat its row of the request log, and take 5 of the 70 µs of a call.
 */
function logRequest(logger: Logger, request: Request, end: RequestEnd): void {
  const { requestId, traceId, caller, logFields, isInRequestLog } = getContext(request);
  const isKnown = (isInRequestLog && end.status < 400) || (end.status < 500 && probed.has(end.route));
  const level = isKnown ? 'debug' : 'info';
  if (!logger.isLevelEnabled(level)) return;
  logger[level](
    {
      request_id: requestId,
      trace_id: traceId,
      workspace_id: caller?.workspaceId,
      key_id: caller?.keyId,
      method: end.method,
      route: end.route,
      status: end.status,
      duration_ms: Math.round(end.durationMs * 100) / 100,
      ...logFields,
    },
    'request ended',
  );
}

/** Static paths first, so that a parameter never hides them and the hot routes are found early. */
function byPath(routes: readonly Route[]): [string, Route[]][] {
  const paths = [...Map.groupBy(routes, (route) => route.path)];
  return [...paths.filter(([path]) => !path.includes(':')), ...paths.filter(([path]) => path.includes(':'))];
}

/**
 * Limits of bodies that a route's own schema checks: settings, not conversations. Zod collects all problems of a map
 * before it reports the first, which takes 7 µs per member.
 */
const settingsLimits = { sizeBytesMax: 1_048_576, membersMax: 10_000 };

function serve(route: Route, deps: HttpAppDeps): RequestHandler {
  const { scope, handler } = route;
  const { body, contract, bodySizeBytesMax, bodyMembersMax } = route.request ?? {};
  const limits = { ...defaultJsonBodyLimits, ...deps.jsonBody };
  if (typeof body === 'object') {
    limits.sizeBytesMax = Math.min(limits.sizeBytesMax, settingsLimits.sizeBytesMax);
    limits.membersMax = Math.min(limits.membersMax, settingsLimits.membersMax);
  }
  if (bodySizeBytesMax !== undefined) limits.sizeBytesMax = bodySizeBytesMax;
  if (bodyMembersMax !== undefined) limits.membersMax = bodyMembersMax;
  const readsMetadata = route.request?.headers?.includes('metadata') === true;
  const isBodyOptional = isOptional(body);
  const readsJson = body !== undefined && body !== 'multipart' && body !== 'relayed';

  const checkQuery = createQueryCheck(route);

  const proceed: RequestHandler = (request, response, next) => {
    // Looking for a query first is cheaper than parsing one for every call.
    if (checkQuery !== null && request.url.includes('?')) checkQuery(request.query);
    if (readsMetadata) readMetadata(request);
    if (body === undefined && hasBody(request)) discardBody(request);
    if (!readsJson || (isBodyOptional && !hasBody(request))) return handler(request, response, next);
    return readJsonBody(request, response, limits, contract).then(() => handler(request, response, next));
  };
  const path = plainPath(route.path);
  return (request, response, next) => {
    const context = getContext(request);
    context.route = path;
    context.scope = scope;
    if (scope === 'public') return proceed(request, response, next);
    const caller = deps.authenticate(request);
    if (!(caller instanceof Promise)) {
      context.caller = caller;
      requireScope(caller, scope);
      return proceed(request, response, next);
    }
    return caller.then((known) => {
      context.caller = known;
      requireScope(known, scope);
      return proceed(request, response, next);
    });
  };
}

function refuseMethod(path: string, routes: readonly Route[]): RequestHandler {
  const methods = routes.flatMap(({ method }) => (method === 'GET' ? ['GET', 'HEAD'] : [method]));
  const allow = methods.join(', ');
  const shownPath = plainPath(path);
  return (request, response) => {
    getContext(request).route = shownPath;
    response.setHeader('allow', allow);
    const message = `The method ${request.method} is not allowed for ${request.path.slice(0, 200)}. Use ${allow}.`;
    throw new GatewayError('method_not_allowed', 'method_not_allowed', message);
  };
}
