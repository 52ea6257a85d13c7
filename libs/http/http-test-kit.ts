import { connect } from 'node:net';
import { pino } from 'pino';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Caller } from './caller.ts';
import { createHttpApp, type HttpAppDeps } from './create-http-app.ts';
import { createHttpServer, type HttpServer, type HttpServerLimits } from './http-server.ts';
import type { OpenApiDocument } from './openapi.ts';
import type { Route } from './route.ts';

/** A logger whose lines can be read. */
export function createTestLogger(): { logger: Logger; lines: Record<string, unknown>[] } {
  const lines: Record<string, unknown>[] = [];
  const write = (line: string): void => void lines.push(JSON.parse(line) as Record<string, unknown>);
  return { logger: pino({ level: 'debug' }, { write }), lines };
}

/** Accepts `Bearer all` (every scope) and `Bearer <scope>`; all other requests are unauthenticated. */
export function authenticateForTest(request: { headers: { authorization?: string | undefined } }): Caller {
  const token = request.headers.authorization?.replace('Bearer ', '');
  if (token === undefined || token === 'wrong') {
    throw new GatewayError('unauthenticated', 'invalid_api_key', 'Incorrect API key provided.');
  }
  const scopes = token === 'all' ? 'all' : new Set([token]);
  const defaults = { configId: null, allowsConfigOverride: true, metadata: null };
  const principal = { type: 'service_key' as const, id: 'key_1', role: null };
  return { workspaceId: 'ws_1', keyId: 'key_1', principal, scopes, defaults, expiresAtMs: Number.POSITIVE_INFINITY };
}

export type TestServer = {
  url: string;
  port: number;
  http: HttpServer;
  lines: Record<string, unknown>[];
  [Symbol.asyncDispose]: () => Promise<void>;
};

/** Serves a route table on a free port of the loopback address. Disposing stops it immediately. */
export async function serveForTest(
  routes: readonly Route[],
  options: { deps?: Partial<HttpAppDeps>; limits?: Partial<HttpServerLimits> } = {},
): Promise<TestServer> {
  const { logger, lines } = createTestLogger();
  const app = createHttpApp({ routes, authenticate: authenticateForTest, logger, ...options.deps });
  const http = createHttpServer(app, options.limits);
  const { port } = await http.listen({ port: 0, host: '127.0.0.1' });
  const dispose = (): Promise<void> => http.stop(0);
  return { url: `http://127.0.0.1:${port}`, port, http, lines, [Symbol.asyncDispose]: dispose };
}

/** Fills in the fields of a route that a test does not care about. */
export function testRoute(route: Pick<Route, 'method' | 'path' | 'handler'> & Partial<Route>): Route {
  const operationId = `${route.method} ${route.path}`;
  return { operationId, summary: 'test', tag: 'test', scope: 'batches.write', responses: {}, ...route };
}

/** Writes the pieces to a new connection, and resolves with everything received until the server closes it. */
export function exchange(port: number, ...pieces: string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    let received = '';
    const socket = connect(port, '127.0.0.1', () => {
      for (const piece of pieces) socket.write(piece, 'latin1');
    });
    socket.on('data', (chunk: Buffer) => {
      received += chunk.toString('latin1');
    });
    socket.on('close', () => resolve(received));
    socket.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'ECONNRESET' && error.code !== 'EPIPE') reject(error);
    });
  });
}

/** The operations of a document as `METHOD /path/:parameter`, sorted, to compare them with a route table. */
export function listOperations(document: OpenApiDocument): string[] {
  const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path.replaceAll(/\{(\w+)\}/g, ':$1')}`),
  );
  return operations.sort();
}
