import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { completionOfObjects, completionOfText, embeddingsOf, smallCompletion, smallEvent } from './hostile-answers.ts';

// A provider whose behaviour is the first part of the path: /fast/v1, /hang/v1, /text-20/v1, … It is a separate
// process, because it writes as fast as the gateway reads. It listens on loopback addresses only: on 127.0.0.1 and
// those in the list that its parent sends, all at the same port.

type Behaviour = (response: ServerResponse, sizeMiB: number) => void | Promise<void>;

const behaviours: Record<string, Behaviour> = {
  fast: (response) => answer(response, smallCompletion),
  hang: () => {},
  objects: (response, sizeMiB) =>
    answer(
      response,
      kept(`objects-${sizeMiB}`, () => completionOfObjects(sizeMiB)),
    ),
  text: (response, sizeMiB) =>
    answer(
      response,
      kept(`text-${sizeMiB}`, () => completionOfText(sizeMiB)),
    ),
  vectors: (response, sizeMiB) =>
    answer(
      response,
      kept(`vectors-${sizeMiB}`, () => embeddingsOf(sizeMiB)),
    ),
  /** Endless interim answers (RFC 9110 15.2). */
  interim: (response) => flood(response, '', 'HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n'.repeat(500)),
  /** A header that never ends, and endless headers. */
  header: (response) => flood(response, 'HTTP/1.1 200 OK\r\nx-long: ', 'a'.repeat(32_768)),
  headers: (response) => flood(response, 'HTTP/1.1 200 OK\r\n', 'x: y\r\n'.repeat(5_000)),
  /** A stream of small events, each in its own chunk (RFC 9112 7.1). */
  events: (response) => flood(response, streamHead, chunkOf(smallEvent).repeat(200)),
  /** A stream in chunks of one byte, which contains only comments. */
  comments: (response) => flood(response, streamHead, chunkOf(':').repeat(2_000) + chunkOf('\n').repeat(2)),
};

const streamHead = 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n';
const chunkOf = (text: string): string => `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`;

const made = new Map<string, Buffer>();

/** Large answers are made once. */
function kept(name: string, make: () => Buffer): Buffer {
  const bytes = made.get(name) ?? make();
  made.set(name, bytes);
  return bytes;
}

function answer(response: ServerResponse, body: Buffer): void {
  response.setHeader('content-type', 'application/json');
  response.setHeader('content-length', body.length);
  response.end(body);
}

/** Writes `head`, and then `piece` again and again, as fast as the other side reads, until it disconnects. */
async function flood(response: ServerResponse, head: string, piece: string): Promise<void> {
  const socket = response.socket as Socket;
  const bytes = Buffer.from(piece);
  socket.write(head);
  while (!socket.destroyed) {
    if (socket.write(bytes)) await new Promise((resolve) => setImmediate(resolve));
    else await Promise.race([once(socket, 'drain'), once(socket, 'close')]);
  }
}

function serve(request: IncomingMessage, response: ServerResponse): void {
  const [, name = '', size = '0'] = /^\/([a-z]+)(?:-(\d+))?\//.exec(request.url ?? '') ?? [];
  const behaviour = behaviours[name];
  response.on('error', () => {});
  request.socket.on('error', () => {}); // a reset by the gateway is part of most attacks
  request.resume();
  request.on('end', () => {
    if (behaviour === undefined) response.writeHead(404).end();
    else void (async () => behaviour(response, Number(size)))().catch(() => response.destroy());
  });
}

async function listen(address: string, port: number): Promise<number> {
  const server = createServer({ keepAliveTimeout: 60_000, requestTimeout: 0 }, serve);
  server.listen({ port, host: address, backlog: 1_024 });
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

const port = await listen('127.0.0.1', 0);
process.on('message', (addresses: readonly string[]) => {
  void (async () => {
    for (const address of addresses) await listen(address, port);
    process.send?.('listening');
  })();
});
process.on('disconnect', () => process.exit(0));
console.log(JSON.stringify({ url: `http://127.0.0.1:${port}` }));
