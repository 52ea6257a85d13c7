import { createServer, type Socket } from 'node:net';
import { once } from 'node:events';
import { sleep } from '#libs/kernel/sleep.ts';

/** One request as received: `bytes` has every byte of its head and body. */
export type UpstreamRequest = {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: Buffer;
  bytes: Buffer;
  /** The number of the connection that it arrived on, from 1. */
  connection: number;
};

/** What a script can do with a request. Heads are written only on demand, so that a script can send anything. */
export type UpstreamReply = {
  /** A whole JSON answer, kept alive. */
  json: (status: number, body: unknown, headers?: Record<string, string>) => void;
  /** A whole answer with these bytes and a content-length, which `headers` may override. */
  respond: (status: number, body: string | Buffer, headers?: Record<string, string>) => void;
  /** Status line and headers of a chunked answer. `write` and `end` follow. */
  head: (status: number, headers?: Record<string, string>) => void;
  /** One HTTP chunk after `head`. Resolves when the socket has taken it (so a script notices back-pressure). */
  write: (body: string | Buffer) => Promise<void>;
  /** The last chunk. */
  end: () => void;
  /** Writes the bytes unchanged, without framing. */
  raw: (bytes: string | Buffer) => Promise<void>;
  /** Closes the connection in order (FIN), whatever was already sent of the answer. */
  cut: () => void;
  /** Closes the connection with a TCP reset. */
  reset: () => void;
  /** Resolves when the other side has disconnected. */
  closed: Promise<void>;
  isClosed: () => boolean;
};

export type UpstreamScript = (reply: UpstreamReply, request: UpstreamRequest) => void | Promise<void>;

export type Upstream = {
  url: URL;
  port: number;
  /** Every complete request, oldest first. */
  requests: UpstreamRequest[];
  /** The number of connections ever accepted, and of those that are open now. */
  connections: () => { accepted: number; open: number };
  /** Everything that arrived on any connection, even if it was not HTTP. */
  received: () => string;
  /** Sets what to do from the next request on. An array plays one script per request and then repeats the last one. */
  script: (next: UpstreamScript | readonly UpstreamScript[]) => void;
  /** Waits until a condition holds. Rejects after five seconds. */
  until: (condition: () => boolean) => Promise<void>;
  stop: () => Promise<void>;
};

/**
 * A provider whose every byte is scripted: it can answer, hang, send slowly, cut, reset and redirect. Listens on a free
 * port.
 */
export async function startUpstream(script: UpstreamScript | readonly UpstreamScript[] = hang): Promise<Upstream> {
  let scripts = typeof script === 'function' ? [script] : [...script];
  const requests: UpstreamRequest[] = [];
  const open = new Set<Socket>();
  const received: Buffer[] = [];
  let accepted = 0;

  const server = createServer({ noDelay: true }, (socket) => {
    accepted += 1;
    const connection = accepted;
    open.add(socket);
    const closed = new Promise<void>((resolve) => {
      socket.once('close', () => {
        open.delete(socket);
        resolve();
      });
    });
    socket.on('error', () => {}); // a reset by the other side is part of many tests
    let pending = Buffer.alloc(0);
    socket.on('data', (chunk: Buffer) => {
      received.push(chunk);
      pending = Buffer.concat([pending, chunk]);
      for (let parsed = readRequest(pending, connection); parsed; parsed = readRequest(pending, connection)) {
        pending = pending.subarray(parsed.bytes.length);
        requests.push(parsed);
        const next = scripts.length > 1 ? scripts.shift() : scripts[0];
        void (async () => next?.(replyOn(socket, closed), parsed))().catch((error: unknown) => {
          console.error('upstream script failed', error);
          socket.destroy();
        });
      }
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('the upstream has no port');

  return {
    url: new URL(`http://127.0.0.1:${address.port}/v1`),
    port: address.port,
    requests,
    connections: () => ({ accepted, open: open.size }),
    received: () => Buffer.concat(received).toString('latin1'),
    script: (next) => {
      scripts = typeof next === 'function' ? [next] : [...next];
    },
    until: waitUntil,
    stop: async () => {
      for (const socket of open) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}

/** Receives a request and never answers. */
export const hang: UpstreamScript = () => {};

/** Streams each payload as one event in one chunk, then `[DONE]`. */
export const streamOf =
  (payloads: readonly string[], headers: Record<string, string> = {}): UpstreamScript =>
  async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream', ...headers });
    for (const payload of [...payloads, '[DONE]']) await reply.write(`data: ${payload}\n\n`);
    reply.end();
  };

/** Waits until a condition holds. Rejects after five seconds. */
export async function waitUntil(condition: () => boolean): Promise<void> {
  const deadline = performance.now() + 5_000;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`still not so after 5 s: ${condition.toString()}`);
    await sleep(2);
  }
}

function replyOn(socket: Socket, closed: Promise<void>): UpstreamReply {
  const raw = async (bytes: string | Buffer): Promise<void> => {
    if (socket.destroyed) return closed;
    if (socket.write(bytes)) return;
    await Promise.race([once(socket, 'drain').catch(() => {}), closed]);
  };
  const writeHead = (status: number, headers: Record<string, string>): void => {
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    void raw(`HTTP/1.1 ${status} Scripted\r\n${lines.join('')}\r\n`);
  };
  const respond: UpstreamReply['respond'] = (status, body, headers = {}) => {
    writeHead(status, { 'content-length': String(Buffer.byteLength(body)), ...headers });
    void raw(body);
  };
  return {
    respond,
    raw,
    closed,
    isClosed: () => socket.destroyed,
    json: (status, body, headers = {}) => {
      respond(status, JSON.stringify(body), { 'content-type': 'application/json', ...headers });
    },
    head: (status, headers = {}) => writeHead(status, { 'transfer-encoding': 'chunked', ...headers }),
    write: (body) => {
      const bytes = Buffer.from(body);
      return raw(Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')]));
    },
    end: () => void raw('0\r\n\r\n'),
    cut: () => void socket.end(),
    reset: () => void socket.resetAndDestroy(),
  };
}

/** The first complete request in the bytes; undefined if there is none. Bodies are framed by content-length only. */
function readRequest(bytes: Buffer, connection: number): UpstreamRequest | undefined {
  const headEnd = bytes.indexOf('\r\n\r\n');
  if (headEnd === -1) return undefined;
  const [start = '', ...lines] = bytes.toString('latin1', 0, headEnd).split('\r\n');
  const [method = '', path = ''] = start.split(' ');
  const headers = Object.fromEntries(
    lines.map((line) => {
      const colon = line.indexOf(':');
      return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
    }),
  );
  const end = headEnd + 4 + Number(headers['content-length'] ?? 0);
  if (bytes.length < end) return undefined;
  return {
    method,
    path,
    headers,
    connection,
    body: Buffer.from(bytes.subarray(headEnd + 4, end)),
    bytes: Buffer.from(bytes.subarray(0, end)),
  };
}
