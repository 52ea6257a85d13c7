import { once } from 'node:events';
import { Agent, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { connect } from 'node:net';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { createHttpServer } from './http-server.ts';
import { exchange, serveForTest, testRoute, type TestServer } from './http-test-kit.ts';

const seen: string[] = [];
const held: (() => void)[] = [];
const routes = [
  testRoute({
    method: 'POST',
    path: '/v1/echo',
    scope: 'public',
    request: { body: 'json-bytes' },
    handler: (request, response) => {
      seen.push(request.path);
      response.json(request.body);
    },
  }),
  testRoute({
    method: 'GET',
    path: '/v1/held',
    scope: 'public',
    handler: async (_request, response) => {
      await new Promise<void>((resolve) => held.push(resolve));
      response.json({ ok: true });
    },
  }),
];

test.each([
  ['two Host headers', 'GET /v1/held HTTP/1.1\r\nHost: a\r\nhost: b\r\nConnection: close\r\n\r\n'],
  ['HTTP/0.9', 'GET /v1/held HTTP/0.9\r\nHost: a\r\nConnection: close\r\n\r\n'],
  ['no Host header', 'GET /v1/held HTTP/1.1\r\nConnection: close\r\n\r\n'],
])('a request with %s is refused', async (_what, bytes) => {
  const answer = await exchange(server.port, bytes);
  expect(answer).toMatch(/^HTTP\/1\.1 400 /);
  expect(answer).toContain('"type":"invalid_request_error"');
});

test('a client that uses the x-portkey- names of headers gets those of the answer by both names, and no other does', async () => {
  const sent = { 'x-gateway-provider': 'openai', 'x-gateway-cache-status': 'HIT' };
  await using aliased = await serveForTest([
    testRoute({
      method: 'GET',
      path: '/v1/listed',
      scope: 'public',
      handler: (_request, response) => void response.writeHead(200, Object.entries(sent).flat()).end('{}'),
    }),
    testRoute({
      method: 'GET',
      path: '/v1/set',
      scope: 'public',
      handler: (_request, response) => {
        for (const [name, value] of Object.entries(sent)) response.setHeader(name, value);
        response.json({});
      },
    }),
  ]);
  for (const path of ['/v1/listed', '/v1/set', '/v1/none']) {
    const names = path === '/v1/none' ? ['trace-id'] : ['trace-id', 'provider', 'cache-status'];
    const { headers } = await fetch(aliased.url + path, { headers: { 'X-Portkey-Trace-Id': 'mine' } });
    expect([path, headers.get('x-portkey-trace-id')]).toEqual([path, 'mine']);
    for (const name of names) expect(headers.get(`x-portkey-${name}`)).toBe(headers.get(`x-gateway-${name}`));
    const plain = await fetch(aliased.url + path, { headers: { 'x-gateway-trace-id': 'mine', 'x-p': '1' } });
    expect([...plain.headers.keys()].filter((name) => name.startsWith('x-portkey-'))).toEqual([]);
    expect(plain.headers.get('x-gateway-trace-id')).toBe('mine');
  }
});

let server: TestServer;
beforeAll(async () => {
  server = await serveForTest(routes, { limits: { headersTimeoutMs: 200, timeoutCheckIntervalMs: 50 } });
});
afterAll(() => server[Symbol.asyncDispose]());

const smuggled = 'POST /v1/smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}';
const start = 'POST /v1/echo HTTP/1.1\r\nHost: a\r\n';

test.each([
  ['TE and CL together', `${start}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${smuggled}`],
  ['two lengths', `${start}Content-Length: 2\r\nContent-Length: 60\r\n\r\n{}${smuggled}`],
  ['an unknown transfer coding', `${start}Transfer-Encoding: xchunked\r\n\r\n${smuggled}`],
  ['chunked not last', `${start}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n${smuggled}`],
  ['a space before the colon', `${start}Content-Length : 2\r\n\r\n{}${smuggled}`],
  ['a folded header', `${start}X-Gateway-Metadata: {}\r\n Content-Length: 2\r\n\r\n${smuggled}`],
  ['a bare CR in a header', `${start}x-gateway-trace-id: a\rX-Other: b\r\n\r\n${smuggled}`],
  ['a NUL in a header', `${start}x-gateway-trace-id: a\0b\r\n\r\n${smuggled}`],
  ['a chunk size that is no number', `${start}Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n${smuggled}`],
  ['a negative length', `${start}Content-Length: -1\r\n\r\n${smuggled}`],
  ['headers over 16 KiB', `${start}x-long: ${'x'.repeat(20_000)}\r\n\r\n${smuggled}`],
  ['bytes that are not HTTP', '\x16\x03\x01\x02\x00hello\r\n\r\n'],
])('ambiguous bytes are refused, the connection closed, and nothing behind them is served: %s', async (name, bytes) => {
  seen.length = 0;
  const answer = await exchange(server.port, bytes);
  expect(answer.match(/HTTP\/1\.1 \d/g)).toHaveLength(1);
  const status = name.startsWith('headers over') ? 431 : 400;
  expect(answer).toMatch(
    new RegExp(`^HTTP/1\\.1 ${status} [^]*content-type: application/json[^]*x-request-id: req_`, 'i'),
  );
  expect(JSON.parse(answer.slice(answer.indexOf('{')))).toEqual({
    error: { message: expect.any(String), type: 'invalid_request_error', param: null, code: expect.any(String) },
  });
  expect(seen).toEqual([]);
});

test('a line break in a header value cannot start another header', async () => {
  const answer = await exchange(
    server.port,
    `${start}x-gateway-trace-id: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}`,
  );
  expect(answer).toMatch(/x-gateway-trace-id: a\r\n/i);
});

test('HTTP/1.1 without Host is refused with a body', async () => {
  const answer = await exchange(server.port, 'GET /v1/held HTTP/1.1\r\nConnection: close\r\n\r\n');
  expect(answer).toMatch(/^HTTP\/1\.1 400 [^]*"code":"missing_host"/);
});

test('more than a hundred headers are refused', async () => {
  const many = Array.from({ length: 101 }, (_, index) => `x-h${index}: 1\r\n`).join('');
  const answer = await exchange(server.port, `GET /v1/held HTTP/1.1\r\nHost: a\r\nConnection: close\r\n${many}\r\n`);
  expect(answer).toMatch(/^HTTP\/1\.1 431 [^]*"code":"request_headers_too_large"/);
});

test('a config that is too large for a header, or has line breaks, is answered with what to do', async () => {
  const start = 'GET /v1/held HTTP/1.1\r\nHost: a\r\nConnection: close\r\nx-gateway-config: ';
  const large = await exchange(server.port, `${start}${'a'.repeat(20_000)}\r\n\r\n`);
  expect(large).toMatch(/^HTTP\/1\.1 431 [^]*"code":"request_headers_too_large"/);
  expect(large).toContain('Store a large config (POST /v1/configs) and send its slug.');
  const broken = await exchange(server.port, `${start}{"strategy":\n  {}}\r\n\r\n`);
  expect(broken).toMatch(/^HTTP\/1\.1 400 [^]*"code":"malformed_request"/);
  expect(broken).toContain('must not contain line breaks');
});

const chunked = `${start}Transfer-Encoding: chunked\r\n\r\n`;
test.each([
  ['a line break in a header', `${start}x-gateway-config: {\n {}}\r\n\r\n`, /a header .* must not contain line breaks/],
  ['a header without a colon', `${start}nonsense\r\n\r\n`, /a header is malformed/],
  ['a NUL in a header', `${start}x-a: a\0b\r\n\r\n`, /a header is malformed/],
  ['a chunk size that is no number', `${chunked}zz\r\n`, /a chunk of the body/],
  ['a chunk longer than its size', `${chunked}1\r\nabc\r\n`, /a chunk of the body/],
  ['a length that is no number', `${start}Content-Length: x\r\n\r\n`, /Content-Length must be one whole number/],
  ['two lengths', `${start}Content-Length: 2\r\nContent-Length: 3\r\n\r\n`, /Content-Length must be one whole number/],
  ['a coding', `${start}Transfer-Encoding: gzip\r\n\r\n`, /Transfer-Encoding must be chunked/],
  ['a method in small letters', 'get / HTTP/1.1\r\nHost: a\r\n\r\n', /its first word is not an HTTP method/],
  ['TLS', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', /TLS \(https\), .* plain HTTP. Use http:\/\//],
  ['HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', /HTTP\/2 is not supported/],
  ['another version', 'GET / HTTP/1.2\r\nHost: a\r\n\r\n', /its HTTP version/],
  ['a space in the path', 'GET /a b HTTP/1.1\r\nHost: a\r\n\r\n', /its first line/],
  ['a path without a slash', 'GET foo HTTP/1.1\r\nHost: a\r\n\r\n', /its first line/],
])('malformed bytes are answered with what is wrong with them: %s', async (name, bytes, message) => {
  const answer = await exchange(server.port, bytes);
  expect(answer).toMatch(/^HTTP\/1\.1 400 [^]*"code":"malformed_request"/);
  expect(answer).toMatch(message);
  expect(answer.includes('x-gateway-config')).toBe(/header/.test(name));
});

test('a client that drips its headers is cut off with 408', async () => {
  const answer = await exchange(server.port, 'GET /v1/held HTTP/1.1\r\nHost:');
  expect(answer).toMatch(/^HTTP\/1\.1 408 [^]*"code":"request_timeout"/);
});

test('two requests on one connection are answered in order', async () => {
  const one = (path: string, more = ''): string =>
    `POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n${more}\r\n{}`;
  const answer = await exchange(server.port, one('/v1/echo') + one('/v1/nope', 'Connection: close\r\n'));
  expect(answer.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 200', 'HTTP/1.1 404']);
});

test('stopping finishes what runs, closes what is idle, and refuses what is new', async () => {
  await using own = await serveForTest(routes);
  const idle = connect(own.port, '127.0.0.1');
  await once(idle, 'connect');
  const idleClosed = once(idle.resume(), 'close');
  const running = fetch(`${own.url}/v1/held`);
  await expect.poll(() => held.length).toBe(1);

  const stopped = own.http.stop(10_000);
  expect(own.http.stop(1)).toBe(stopped);
  await idleClosed;
  await expect(fetch(`${own.url}/v1/held`)).rejects.toThrow('fetch failed');
  held.pop()?.();
  const response = await running;
  expect(response.headers.get('connection')).toBe('close');
  expect(await response.json()).toEqual({ ok: true });
  await stopped;
});

test('a server that is leaving serves for a while, and takes leave of each connection with its answer', async () => {
  await using own = await serveForTest(routes);
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  onTestFinished(() => agent.destroy());
  const ask = async () => {
    const request = httpRequest({ agent, port: own.port, path: '/v1/held' }).end();
    await expect.poll(() => held.length).toBe(1);
    held.pop()?.();
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    response.resume();
    await once(response, 'end');
    return { status: response.statusCode, connection: response.headers.connection, reused: request.reusedSocket };
  };
  expect(await ask()).toEqual({ status: 200, connection: 'keep-alive', reused: false });

  const stopped = own.http.stop(10_000, 3_000);
  // The idle connection was not closed under its client; the next one is still accepted.
  expect(await ask()).toEqual({ status: 200, connection: 'close', reused: true });
  expect(await ask()).toEqual({ status: 200, connection: 'close', reused: false });
  await stopped;
  await expect(fetch(`${own.url}/v1/held`)).rejects.toThrow('fetch failed');
});

test('stopping cuts what outlives its deadline', async () => {
  await using own = await serveForTest(routes);
  const running = fetch(`${own.url}/v1/held`);
  running.catch(() => {});
  await expect.poll(() => held.length).toBe(1);
  await own.http.stop(50);
  await expect(running).rejects.toThrow('fetch failed');
  held.pop()?.();
});

test('a port in use is an error of listen, and a server that never listened stops', async () => {
  const second = createHttpServer(() => {});
  await expect(second.listen({ port: server.port, host: '127.0.0.1' })).rejects.toMatchObject({ code: 'EADDRINUSE' });
  await second.stop(0);
});

test('after answers out of order, exactly the responses still open say that the connection closes', async () => {
  const open: { path: string; end: () => void }[] = [];
  const own = createHttpServer((request, response) => {
    open.push({ path: request.url ?? '', end: () => response.end() });
  });
  const { port } = await own.listen({ port: 0, host: '127.0.0.1' });
  const paths = ['/a', '/b', '/c', '/d'];
  const answers = new Map(paths.map((path) => [path, fetch(`http://127.0.0.1:${port}${path}`)]));
  await vi.waitFor(() => expect(open).toHaveLength(paths.length));
  const answer = async (path: string): Promise<string | null> => {
    open.find((each) => each.path === path)?.end();
    const response = await answers.get(path);
    await response?.text();
    return response?.headers.get('connection') ?? null;
  };
  expect(await answer('/b')).toBe('keep-alive');
  expect(await answer('/a')).toBe('keep-alive');
  const stopped = own.stop(5_000);
  expect([await answer('/d'), await answer('/c')]).toEqual(['close', 'close']);
  await stopped;
});

test.each([
  ['a large answer', (response: ServerResponse) => response.end('x'.repeat(40_000_000))],
  [
    'the last words of a stream',
    async (response: ServerResponse) => {
      // Until the kernel buffers no more for a client that does not read.
      while (response.writableLength === 0) {
        response.write('x'.repeat(100_000));
        await sleep(1);
      }
      response.end('data: [DONE]\n\n');
    },
  ],
])('a client that does not take the rest of %s is cut off, and what it held is free', async (_what, answer) => {
  let isClosed = false;
  const own = createHttpServer(
    (_request, response) => {
      response.on('close', () => (isClosed = true));
      void answer(response);
    },
    { stallTimeoutMs: 200 },
  );
  const { port } = await own.listen({ port: 0, host: '127.0.0.1' });
  onTestFinished(() => own.stop(0));
  const client = connect(port, '127.0.0.1').pause();
  client.on('error', () => {});
  onTestFinished(() => void client.destroy());
  client.write('GET / HTTP/1.1\r\nHost: test\r\n\r\n');
  await vi.waitFor(() => expect(isClosed).toBe(true), { timeout: 5_000 });
});
