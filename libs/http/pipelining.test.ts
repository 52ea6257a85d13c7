import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { expect, onTestFinished, test, vi } from 'vitest';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { serveForTest, testRoute, type TestServer } from './http-test-kit.ts';

const get = (path: string): string => `GET ${path} HTTP/1.1\r\nHost: test\r\n\r\n`;
const post = (path: string, body: string): string =>
  `POST ${path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;

async function serve(): Promise<TestServer & { begun: string[]; answer: () => void; memory: () => number }> {
  const begun: string[] = [];
  const open: (() => void)[] = [];
  const memory = createMemoryBudget(100_000_000);
  const route = {
    scope: 'public' as const,
    handler: async (request: { path: string }, response: { json: (body: object) => unknown }) => {
      begun.push(request.path);
      await new Promise<void>((resolve) => open.push(resolve));
      response.json({ path: request.path });
    },
  };
  const server = await serveForTest(
    [
      testRoute({ method: 'GET', path: '/v1/:name', ...route }),
      testRoute({ method: 'POST', path: '/v1/:name', request: { body: 'json-bytes' }, ...route }),
    ],
    { deps: { jsonBody: { memory } } },
  );
  onTestFinished(() => server[Symbol.asyncDispose]());
  return { ...server, begun, answer: () => open.shift()?.(), memory: () => memory.stats().heldBytes };
}

async function open(port: number): Promise<{ socket: Socket; received: () => string }> {
  let received = '';
  const socket = connect(port, '127.0.0.1').setEncoding('latin1');
  socket.on('error', () => {}).on('data', (text: string) => (received += text));
  onTestFinished(() => void socket.destroy());
  await once(socket, 'connect');
  return { socket, received: () => received };
}

test('requests that come before the answer to the one before are begun one after the other', async () => {
  const server = await serve();
  const { socket, received } = await open(server.port);
  socket.write(get('/v1/a') + post('/v1/b', '{"x":1}') + get('/v1/c'));
  for (const count of [1, 2, 3]) {
    await vi.waitFor(() => expect(server.begun).toHaveLength(count));
    server.answer();
  }
  await vi.waitFor(() => expect(received().match(/"path":"\/v1\/\w"/g)).toHaveLength(3));
  expect(server.begun).toEqual(['/v1/a', '/v1/b', '/v1/c']);
});

test('a client that leaves with requests in its line leaves nothing behind', async () => {
  const server = await serve();
  const { socket } = await open(server.port);
  socket.write(get('/v1/a') + post('/v1/b', JSON.stringify({ x: 'y'.repeat(100_000) })));
  await vi.waitFor(() => expect(server.begun).toContain('/v1/a'));

  socket.destroy();
  await vi.waitFor(() => expect(server.lines.some((line) => line['msg'] === 'request ended')).toBe(true));
  server.answer();
  server.answer();
  await vi.waitFor(() => expect(server.memory()).toBe(0));
  await server.http.stop(0);
});

test('a connection with more requests in its line than any client has is cut', async () => {
  const server = await serve();
  const { socket } = await open(server.port);
  socket.write(get('/v1/a').repeat(1_000));
  await once(socket, 'close');
  expect(server.begun.length).toBeLessThanOrEqual(1);
});
