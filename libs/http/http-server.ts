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
import { rawErrorResponse } from './error-response.ts';
import { answerHeadersOf, newRequestId, usesAliases } from './request-context.ts';
import { stallTimeoutMsDefault } from './send-pieces.ts';

export type HttpServerLimits = {
  /** A client that drips its headers is cut off after this. */
  headersTimeoutMs: number;
  /** Whole request, body included: the longest that any route allows. Shorter ones are kept by the body readers. */
  requestTimeoutMs: number;
  /** Longer than the idle time of usual load balancers (60 s), so that they close first and never hit a closing one. */
  keepAliveTimeoutMs: number;
  headerSizeBytesMax: number;
  connectionsMax: number;
  /** A client that does not take the rest of an answer within this is cut off: its connection holds what the call held. */
  stallTimeoutMs: number;
  /** How often the two timeouts above are looked at. */
  timeoutCheckIntervalMs: number;
};

export const defaultHttpServerLimits: HttpServerLimits = {
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
  /** Resolves with the port once connections are accepted; rejects when the address cannot be had. */
  listen: (address: { port: number; host: string }) => Promise<{ port: number }>;
  /**
   * Tells clients with `connection: close` and goes on accepting for `servedMs`, so that whoever sends requests here can
   * learn that this process is leaving. Then stops accepting, closes what is idle, lets requests in flight finish, and
   * after `deadlineMs` cuts what is left. Resolves when no connection is open. Idempotent, and legal before `listen`.
   */
  stop: (deadlineMs: number, servedMs?: number) => Promise<void>;
};

/** A node:http server with every limit set. Never the lenient parser: what is ambiguous is refused and closed. */
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
    requireHostHeader: false, // refused by openContext, with a body
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
    // Node gives a response its socket when the one before has left. Requests that come earlier would all be worked on at
    // once, thousands of one piece of 64 KiB, and their answers kept for a client that may read none of them.
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
  // Not answered here: the body readers send "100 Continue" when the caller may send at all.
  server.on('checkContinue', serve);
  server.on('checkExpectation', serve);
  server.on('clientError', (error: NodeJS.ErrnoException & { rawPacket?: Buffer }, socket: Socket) => {
    // An answer already on its way would be corrupted by a second one.
    const isAnswering = inFlight.responses.some((response) => response.socket === socket && response.headersSent);
    if (error.code === 'ECONNRESET' || !socket.writable || isAnswering) socket.destroy();
    else socket.end(rawErrorResponse(error, newRequestId()), () => socket.destroy());
  });

  const untaken = setInterval(cutStalled(inFlight.responses, limits.stallTimeoutMs), limits.stallTimeoutMs / 2).unref();

  const stop = async (deadlineMs: number, servedMs: number): Promise<void> => {
    if (!server.listening) return clearInterval(untaken);
    for (const response of inFlight.responses) if (!response.headersSent) response.setHeader('connection', 'close');
    // A connection that is idle now may get a request at any moment, which would be lost if it were closed: its client
    // is told with the answer. What is still idle at the end has had nothing to do in all that time.
    if (servedMs > 0) await sleep(servedMs);
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    // Connections without a byte yet: Node counts them as busy. (A 'data' listener would tell sooner, and slow every
    // request down: the parser then no longer reads from the socket by itself.)
    for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy();
    // A connection that becomes idle after its last answer is closed here; Node does not do it by itself.
    const sweep = setInterval(() => server.closeIdleConnections(), 50);
    const deadline = setTimeout(() => server.closeAllConnections(), deadlineMs);
    await closed;
    clearInterval(sweep);
    clearTimeout(deadline);
    clearInterval(untaken);
  };

  return {
    server,
    listen: ({ port, host }) =>
      new Promise((resolve, reject) => {
        server.once('error', reject);
        server.listen({ port, host, backlog: 1_024 }, () => {
          server.off('error', reject);
          resolve({ port: (server.address() as AddressInfo).port });
        });
      }),
    stop: (deadlineMs, servedMs = 0) => (stopping ??= stop(deadlineMs, servedMs)),
  };
}

/** Clients that send requests ahead are old and rare, and none has more than a few. */
const pipelinedMax = 64;
const pipelinedKey = Symbol('pipelined');

/** How many requests of a connection wait for their turn, after a change. */
function countPipelined(socket: Socket & { [pipelinedKey]?: number }, change: number): number {
  return (socket[pipelinedKey] = (socket[pipelinedKey] ?? 0) + change);
}

/** A look at the responses that have ended: those that a client has not taken since `stallTimeoutMs` ago are cut off. */
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
 * The responses that are not closed yet. Not a Set: V8 replaces the table of a busy Set all the time, each dead table
 * refers to the next one, and once the first has become old no response dies before the next full collection: that
 * cost a fifth of the processor time of a request.
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

/** All headers of an answer, those that it has and the `more` of its head, with ours under the names of the alias too. */
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

/** Of the interface's own statuses (246 and 446: a guardrail was not passed), which Node would call "unknown". */
const reasonPhrases: Readonly<Record<number, string>> = { 246: 'Guardrail Failed', 446: 'Guardrail Denied' };

type ExpressPrototypes = { request: IncomingMessage; response: ServerResponse };

/**
 * Express gives every request and response its own prototype, which costs 6 % of an empty request and slows down each
 * use of the changed objects. Here they are born with it, and the change changes nothing.
 */
function messageClasses(
  app: RequestListener & Partial<ExpressPrototypes>,
): { IncomingMessage: typeof IncomingMessage; ServerResponse: typeof ServerResponse } | Record<string, never> {
  const { request, response } = app;
  if (request === undefined || response === undefined) return {};
  class AppRequest extends IncomingMessage {}
  class AppResponse<Request extends IncomingMessage = IncomingMessage> extends ServerResponse<Request> {
    /**
     * The one place that every head passes, and where the ids of the request are added. A head that comes as one list,
     * with no header set before, is written as it is, which saves 2 % of a live call.
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
      const ids = answerHeadersOf(this.req);
      const [only] = rest;
      const isAliased = usesAliases(this.req);
      if (rest.length === 1 && Array.isArray(only) && !isAliased)
        return super.writeHead(status, ids.concat(only as string[]));
      for (let index = 0; index < ids.length; index += 2)
        this.setHeader(ids[index] as string, ids[index + 1] as string);
      if (isAliased) return super.writeHead(status, withAliases(this, rest.at(-1)));
      return super.writeHead(status, ...(rest as [string, OutgoingHttpHeaders]));
    }
  }
  app.request = Object.setPrototypeOf(AppRequest.prototype, request) as IncomingMessage;
  app.response = Object.setPrototypeOf(AppResponse.prototype, response) as ServerResponse;
  return { IncomingMessage: AppRequest, ServerResponse: AppResponse };
}
