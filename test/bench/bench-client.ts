import { connect, type Socket } from 'node:net';

/**
 * Called once per request: with the status of an answer that arrived whole, or null. `contentAtMs`: when the text that shows
 * its first content had arrived; 0 if that was not looked for.
 */
type OnEnd = (status: number | null, contentAtMs: number) => void;

type Connection = {
  socket: Socket;
  reader: AnswerReader;
  onEnd: OnEnd | null;
  idleSinceMs: number;
  contentAtMs: number;
};

// Node's servers close a connection that was idle for 5 s, and a request that is sent at that moment is lost.
const idleMsMax = 2_000;

/**
 * Sends the same request again and again over kept-alive connections, and reads only the status and the end of each
 * answer. The load generator shares two cores with what it measures. With undici a request cost it 34 µs, a fifth of
 * the total cost of a request to Sluice, while real clients run on other machines.
 */
export function createBenchClient(request: {
  origin: string;
  path: string;
  headers: object;
  body: string;
  contentMark?: string;
}) {
  const { contentMark } = request;
  const { hostname, port, host } = new URL(request.origin);
  const headers = { ...request.headers, host, 'content-length': Buffer.byteLength(request.body) };
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  const bytes = Buffer.from(`POST ${request.path} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n${request.body}`);
  const idle: Connection[] = [];

  const open = (): Connection => {
    const socket = connect({ host: hostname, port: Number(port), noDelay: true });
    const connection: Connection = {
      socket,
      reader: createAnswerReader(),
      onEnd: null,
      idleSinceMs: 0,
      contentAtMs: 0,
    };
    const end = (status: number | null): void => {
      const { onEnd } = connection;
      connection.onEnd = null;
      onEnd?.(status, connection.contentAtMs);
    };
    socket.on('data', (chunk: Buffer) => {
      if (contentMark !== undefined && connection.contentAtMs === 0 && chunk.includes(contentMark)) {
        connection.contentAtMs = performance.now();
      }
      if (!connection.reader.read(chunk)) return;
      const { status } = connection.reader;
      connection.reader = createAnswerReader();
      connection.idleSinceMs = performance.now();
      idle.push(connection);
      end(status);
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      const index = idle.indexOf(connection);
      if (index !== -1) idle.splice(index, 1);
      end(null);
    });
    return connection;
  };
  const take = (): Connection => {
    const connection = idle.pop();
    if (connection === undefined) return open();
    if (performance.now() - connection.idleSinceMs <= idleMsMax) return connection;
    for (const { socket } of [connection, ...idle.splice(0)]) socket.destroy();
    return open();
  };
  return {
    /** Uses the connection that was used last, or opens one. */
    send(onEnd: OnEnd): void {
      const connection = take();
      connection.onEnd = onEnd;
      connection.contentAtMs = 0;
      connection.socket.write(bytes);
    },
  };
}

type AnswerReader = { status: number; read: (chunk: Buffer) => boolean };

/** Finds the end of one answer with a Content-Length or in chunks (RFC 9112 section 7.1, without trailers). */
export function createAnswerReader(): AnswerReader {
  let head = '';
  /** Bytes of the body, or of the chunk with its line end, that have not arrived yet; null: a chunk's size is next. */
  let left: number | null = 0;
  let isChunked = false;
  let sizeLine = '';

  const readChunks = (chunk: Buffer): boolean => {
    let at = 0;
    while (at < chunk.length) {
      if (left !== null) {
        const taken = Math.min(left, chunk.length - at);
        at += taken;
        left -= taken;
        if (left > 0) return false;
        if (sizeLine === '0\r\n') return true;
        left = null;
        sizeLine = '';
      } else {
        const end = chunk.indexOf('\n', at);
        sizeLine += chunk.toString('latin1', at, end === -1 ? chunk.length : end + 1);
        if (end === -1) return false;
        at = end + 1;
        left = Number.parseInt(sizeLine, 16) + 2;
        if (left === 2) sizeLine = '0\r\n';
      }
    }
    return false;
  };

  const reader: AnswerReader = {
    status: 0,
    read(chunk) {
      let body = chunk;
      if (reader.status === 0) {
        head += chunk.toString('latin1');
        const end = head.indexOf('\r\n\r\n');
        if (end === -1) return false;
        body = chunk.subarray(chunk.length - (head.length - end - 4));
        reader.status = Number(head.slice(9, 12));
        const length = /\r\ncontent-length: *(\d+)/i.exec(head.slice(0, end + 2))?.[1];
        isChunked = length === undefined;
        left = isChunked ? null : Number(length);
      }
      if (isChunked) return readChunks(body);
      left = (left ?? 0) - body.length;
      return left <= 0;
    },
  };
  return reader;
}
