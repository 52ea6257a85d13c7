import {
  createServer,
  IncomingMessage,
  type OutgoingHttpHeader,
  type OutgoingHttpHeaders,
  type RequestListener,
  type Server,
  ServerResponse,
} from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { sleep } from '#libs/kernel/sleep.ts';
import { rawErrorResponse } from './answers/error-response.ts';
import { standardHeaders, newRequestId, usesAliases } from './request-context.ts';
import { stallTimeoutMsDefault } from './answers/send-pieces.ts';

export type HttpServerLimits = {
  /** A client that sends its headers more slowly is disconnected. */
  headersTimeoutMs: number;
  /** For the whole request with its body: the maximum of all routes. Body readers enforce shorter ones. */
  requestTimeoutMs: number;
  /** Longer than the idle time of usual load balancers (60 s), so that they close first and never send into a closing one. */
  keepAliveTimeoutMs: number;
  headerSizeBytesMax: number;
  connectionsMax: number;
  /**
   * A client that does not read the rest of an answer in this time is disconnected, because the answer takes memory.
   */
  stallTimeoutMs: number;
  /** How often the timeouts above are checked. */
  timeoutCheckIntervalMs: number;
};

const defaultHttpServerLimits: HttpServerLimits = {
  headersTimeoutMs: 10_000,
  requestTimeoutMs: 3_600_000,
  keepAliveTimeoutMs: 75_000,
  headerSizeBytesMax: 16_384,
  connectionsMax: 10_000,
  stallTimeoutMs: stallTimeoutMsDefault,
  timeoutCheckIntervalMs: 2_000,
};

export type HttpServer = {
  readonly server: Server;
  /**
   * Resolves with the port once connections are accepted; rejects if the address is not available. With `reusePort`, the
   * kernel shares the connections among all processes that listen on the port in this way.
   */
  listen: (address: { port: number; host: string; reusePort?: boolean }) => Promise<{ port: number }>;
  /**
   * Sends `connection: close` with each answer and continues to accept for `servedMs`, so that load balancers can notice that
   * this process is stopping. Then it stops accepting, closes idle connections, lets requests in flight finish, and closes
   * the rest after `deadlineMs`. Resolves when no connection is open. Idempotent, and allowed before `listen`.
   */
  stop: (deadlineMs: number, servedMs?: number) => Promise<void>;
};

/** A node:http server with every limit set and the strict parser: ambiguous requests are rejected and closed. */
export function createHttpServer(app: RequestListener, overrides: Partial<HttpServerLimits> = {}): HttpServer {
  const limits = { ...defaultHttpServerLimits, ...overrides };
  const server = createServer({
    ...messageClasses(app),
    headersTimeout: limits.headersTimeoutMs,
    requestTimeout: limits.requestTimeoutMs,
    keepAliveTimeout: limits.keepAliveTimeoutMs,
    maxHeaderSize: limits.headerSizeBytesMax,
    connectionsCheckingInterval: limits.timeoutCheckIntervalMs,
    insecureHTTPParser: false,
    requireHostHeader: false, // openContext refuses it, with a body.
    noDelay: true,
  });
  server.maxConnections = limits.connectionsMax;

  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  const inFlight = createInFlight();
  let stopping: Promise<void> | null = null;
  const begin = (request: IncomingMessage, response: ServerResponse): void => {
    if (response.destroyed) return;
    inFlight.add(response);
    if (stopping !== null) response.setHeader('connection', 'close');
    app(request, response);
  };
  const serve = (request: IncomingMessage, response: ServerResponse): void => {
    // Node assigns a response its socket when the previous one has left. Otherwise, all pipelined requests would run
    // together, thousands from one piece of 64 KiB, and their answers would stay in memory for a client that possibly reads
    // none of them.
    if (response.socket !== null) begin(request, response);
    else if (countPipelined(request.socket, 1) > pipelinedMax) request.socket.destroy();
    else {
      response.once('socket', () => {
        countPipelined(request.socket, -1);
        process.nextTick(begin, request, response);
      });
    }
  };
  server.on('request', serve);
  // Not answered here: a body reader sends "100 Continue" once it accepts the body.
  server.on('checkContinue', serve);
  server.on('checkExpectation', serve);
  server.on('clientError', (error: NodeJS.ErrnoException & { rawPacket?: Buffer }, socket: Socket) => {
    // If an answer is already on its way, a second one would corrupt it.
    const isAnswering = inFlight.responses.some((response) => response.socket === socket && response.headersSent);
    if (error.code === 'ECONNRESET' || !socket.writable || isAnswering) socket.destroy();
    else socket.end(rawErrorResponse(error, newRequestId()), () => socket.destroy());
  });

  const untaken = setInterval(cutStalled(inFlight.responses, limits.stallTimeoutMs), limits.stallTimeoutMs / 2).unref();

  const stop = async (deadlineMs: number, servedMs: number): Promise<void> => {
    if (!server.listening) return clearInterval(untaken);
    for (const response of inFlight.responses) if (!response.headersSent) response.setHeader('connection', 'close');
    // On a connection that is idle now, a request can arrive at any moment, and closing the connection would lose it.
    // Its client learns about the stop from the answer instead. Connections that are still idle at the end had no
    // request in all that time.
    if (servedMs > 0) await sleep(servedMs);
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    // Node treats connections that have not sent a byte as busy. (A 'data' listener would be quicker but slow every
    // request down, because the parser then no longer reads from the socket itself.)
    for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy();
    // Closes connections that become idle after their last answer, which Node does not do automatically.
    const sweep = setInterval(() => server.closeIdleConnections(), 50);
    const deadline = setTimeout(() => server.closeAllConnections(), deadlineMs);
    await closed;
    clearInterval(sweep);
    clearTimeout(deadline);
    clearInterval(untaken);
  };

  return {
    server,
    listen: ({ port, host, reusePort = false }) =>
      new Promise((resolve, reject) => {
        server.once('error', reject);
        server.listen({ port, host, reusePort, backlog: 1_024 }, () => {
          server.off('error', reject);
          resolve({ port: (server.address() as AddressInfo).port });
        });
      }),
    stop: (deadlineMs, servedMs = 0) => (stopping ??= stop(deadlineMs, servedMs)),
  };
}

/** Few clients send requests ahead, and only a few each. */
const pipelinedMax = 64;
const pipelinedKey = Symbol('pipelined');

/** Changes and returns the number of requests of a connection that wait for their turn. */
function countPipelined(socket: Socket & { [pipelinedKey]?: number }, change: number): number {
  return (socket[pipelinedKey] = (socket[pipelinedKey] ?? 0) + change);
}

/** Returns a check that disconnects clients that have not read an ended response within `stallTimeoutMs`. */
function cutStalled(responses: readonly ServerResponse[], stallTimeoutMs: number): () => void {
  let endedAt = new Map<ServerResponse, number>();
  return () => {
    const now = performance.now();
    const ended = responses.filter(({ writableEnded }) => writableEnded);
    endedAt = new Map(ended.map((response) => [response, endedAt.get(response) ?? now]));
    for (const [response, at] of endedAt) if (now - at >= stallTimeoutMs) response.destroy();
  };
}

const slotKey = Symbol('slot');
type Slotted = ServerResponse & { [slotKey]?: number | undefined };

/**
 * The responses that are not closed yet. This is not a Set, because V8 keeps replacing the table of a busy Set, and
 * each dead table refers to the next one. Once the first table is old, no response is freed before the next full
 * collection, which cost a fifth of the processor time per request.
 */
function createInFlight(): { readonly responses: readonly ServerResponse[]; add: (response: ServerResponse) => void } {
  const responses: Slotted[] = [];
  function remove(this: Slotted): void {
    const slot = this[slotKey];
    if (slot === undefined) return;
    this[slotKey] = undefined;
    const last = responses.pop();
    if (last === undefined || last === this) return;
    responses[slot] = last;
    last[slotKey] = slot;
  }
  return {
    responses,
    add(response: Slotted) {
      response[slotKey] = responses.push(response) - 1;
      response.on('close', remove);
    },
  };
}

/** All headers of an answer, including the `more` of its head, plus our own headers under their alias names. */
function withAliases(response: ServerResponse, more: unknown): OutgoingHttpHeaders {
  const headers = response.getHeaders();
  const list = Array.isArray(more)
    ? more
    : Object.entries(typeof more === 'object' && more !== null ? more : {}).flat();
  for (let index = 0; index < list.length; index += 2) headers[String(list[index])] = list[index + 1];
  for (const [name, value] of Object.entries(headers))
    if (name.startsWith('x-gateway-')) headers[name.replace('x-gateway-', 'x-portkey-')] = value;
  return headers;
}

/** For our own statuses (246 and 446: a guardrail failed), which Node would call "unknown". */
const reasonPhrases: Readonly<Record<number, string>> = { 246: 'Guardrail Failed', 446: 'Guardrail Denied' };

type ExpressPrototypes = { request: IncomingMessage; response: ServerResponse };

/**
 * Express changes the prototype of every request and response, which costs 6 % of an empty request and slows down every
 * later use of these objects. Objects created from these classes already have that prototype.
 */
function messageClasses(
  app: RequestListener & Partial<ExpressPrototypes>,
): { IncomingMessage: typeof IncomingMessage; ServerResponse: typeof ServerResponse } | Record<string, never> {
  const { request, response } = app;
  if (request === undefined || response === undefined) return {};
  class AppRequest extends IncomingMessage {}
  class AppResponse<Request extends IncomingMessage = IncomingMessage> extends ServerResponse<Request> {
    /**
     * Adds the headers of every answer, in the one place that every response head passes. If the head comes as one list
     * and no header was set before, it is written unchanged, which saves 2 % of a live call.
     */
    override writeHead(
      status: number,
      ...rest: [
        reason?: string | OutgoingHttpHeaders | OutgoingHttpHeader[],
        headers?: OutgoingHttpHeaders | OutgoingHttpHeader[],
      ]
    ): this {
      const phrase = reasonPhrases[status];
      if (phrase !== undefined) this.statusMessage = phrase;
      const common = standardHeaders(this.req);
      const [only] = rest;
      const isAliased = usesAliases(this.req);
      if (rest.length === 1 && Array.isArray(only) && !isAliased)
        return super.writeHead(status, common.concat(only as string[]));
      for (let index = 0; index < common.length; index += 2) {
        const name = common[index] as string;
        if (!this.hasHeader(name)) this.setHeader(name, common[index + 1] as string);
      }
      if (isAliased) return super.writeHead(status, withAliases(this, rest.at(-1)));
      return super.writeHead(status, ...(rest as [string, OutgoingHttpHeaders]));
    }
  }
  app.request = Object.setPrototypeOf(AppRequest.prototype, request) as IncomingMessage;
  app.response = Object.setPrototypeOf(AppResponse.prototype, response) as ServerResponse;
  return { IncomingMessage: AppRequest, ServerResponse: AppResponse };
}
