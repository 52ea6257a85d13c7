import { connect, type Socket } from 'node:net';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test, vi } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { sendPieces } from './send-pieces.ts';
import { sendTogether } from './send-together.ts';

let server: Server;
let socket: Socket;

afterEach(async () => {
  socket.destroy();
  server.closeAllConnections();
  await new Promise((resolve) => void server.close(resolve));
});

type Served = { port: number; ended: { response: ServerResponse; isClosed: boolean }[] };

async function serve(handler: (response: ServerResponse) => unknown): Promise<Served> {
  const ended: Served['ended'] = [];
  server = createServer((_request, response) => {
    const entry = { response, isClosed: false };
    ended.push(entry);
    response.on('close', () => (entry.isClosed = true));
    void handler(response);
  });
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  return { port: (server.address() as AddressInfo).port, ended };
}

/** A client that has sent its request and reads nothing until it is resumed. */
async function ask(port: number): Promise<Socket> {
  socket = connect(port, '127.0.0.1').pause();
  socket.on('error', () => {}); // These tests cause resets.
  await new Promise((resolve) => void socket.once('connect', resolve));
  socket.write('GET / HTTP/1.1\r\nHost: test\r\n\r\n');
  return socket;
}

// More than the kernel buffers for a client that does not read.
const large = Buffer.alloc(40_000_000, 'x');

test('a client that reads nothing of a large answer is cut off', async () => {
  const { port, ended } = await serve((response) => {
    response.writeHead(200, { 'content-length': large.length });
    sendTogether(response, large, 200);
  });
  await ask(port);
  await vi.waitFor(() => expect(ended[0]?.isClosed).toBe(true), 10_000);
  expect(ended[0]?.response.writableFinished).toBe(false);
});

test('so is one that stops in the middle of a stream, and nothing more is asked of the source', async () => {
  let asked = 0;
  let isLeft = false;
  function* source(): Generator<Buffer> {
    try {
      for (; asked < 1_000; asked += 1) yield large.subarray(0, 1_000_000);
    } finally {
      isLeft = true;
    }
  }
  const outcome: boolean[] = [];
  const { port } = await serve(async (response) => outcome.push(await sendPieces(response, source(), 200)));
  await ask(port);
  await vi.waitFor(() => expect(outcome).toEqual([false]), 10_000);
  expect(asked).toBeLessThan(1_000);
  expect(isLeft).toBe(true);
});

test('a client that reads slowly, but reads, gets all of it', async () => {
  const { port, ended } = await serve((response) => {
    response.writeHead(200, { 'content-length': large.length, connection: 'close' });
    sendTogether(response, large, 2_000);
  });
  const client = await ask(port);
  let received = 0;
  for await (const chunk of client as AsyncIterable<Buffer>) {
    received += chunk.length;
    if (received % 50 === 0) await sleep(1);
  }
  expect(received).toBeGreaterThan(large.length);
  expect(ended[0]?.response.writableFinished).toBe(true);
});
