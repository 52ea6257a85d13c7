import { createServer, request, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { sendTogether } from './send-together.ts';

let server: Server | undefined;

afterEach(async () => {
  await new Promise((resolve) => (server ? server.close(resolve) : resolve(undefined)));
});

async function fetchAnswer(body: Buffer): Promise<{ head: IncomingMessage; bytes: Buffer }> {
  server = createServer((_request, response) => {
    response.writeHead(200, { 'x-name': 'caf\u00e9', 'content-length': body.length });
    sendTogether(response, body);
  });
  await new Promise<void>((resolve) => server?.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const head = await new Promise<IncomingMessage>((resolve, reject) => {
    request({ port, host: '127.0.0.1', agent: false }, resolve).on('error', reject).end();
  });
  return { head, bytes: Buffer.concat(await head.toArray()) };
}

const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));

test.each([
  ['no body', Buffer.alloc(0)],
  ['text of several scripts', Buffer.from('Grüße, 世界 … 🙂')],
  ['every byte', everyByte],
  ['a body at the bound of one piece', Buffer.alloc(16_384, everyByte)],
  ['a body beyond it', Buffer.alloc(16_385, everyByte)],
  ['a large body', Buffer.alloc(3_000_000, everyByte)],
])('sends %s byte by byte, and the head as it was', async (_name, body) => {
  const { head, bytes } = await fetchAnswer(body);
  expect(bytes.equals(body)).toBe(true);
  expect(head.headers['x-name']).toBe('caf\u00e9');
  expect(head.headers['content-length']).toBe(String(body.length));
});

test('answers that end in the same turn all arrive, whatever became of one of their clients', async () => {
  const bodies = ['a', 'b', 'c', 'd'];
  const open: (() => void)[] = [];
  server = createServer((incoming, response) => {
    open.push(() => sendTogether(response, Buffer.from(incoming.url ?? '')));
    if (incoming.url === '/b') response.destroy();
    if (open.length === bodies.length) for (const end of open) end();
  });
  await new Promise<void>((resolve) => server?.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const answers = await Promise.allSettled(
    bodies.map(async (name) => await (await fetch(`http://127.0.0.1:${port}/${name}`)).text()),
  );
  const texts = answers.map((answer) => (answer.status === 'fulfilled' ? answer.value : 'cut'));
  expect(texts).toEqual(['/a', 'cut', '/c', '/d']);
});
