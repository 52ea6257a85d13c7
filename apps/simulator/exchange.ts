import type { IncomingMessage, ServerResponse } from 'node:http';
import { sendTogether } from '#libs/http/answers/send-together.ts';
import type { Stats } from './stats.ts';

/** One request with its reply. The only code that writes to the socket. */
export type Exchange = ReturnType<typeof createExchange>;

type Context = { route: string; stats: Stats; headers: () => string[]; requestId?: string };

/**
 * Handles one request from start to end. `headers` (flat names and values) are sent with every status. When the client
 * disconnects or the simulator stops, pauses end early and no further bytes are written. Clients that disconnect early are
 * counted.
 */
export function createExchange(
  request: IncomingMessage,
  response: ServerResponse,
  { route, stats, headers, requestId = '' }: Context,
) {
  let closed = false;
  let brokenByUs = false;
  let wake: (() => void) | undefined; // Only one pause or drain is pending at any time.
  stats.received(route);
  response.on('close', () => {
    closed = true;
    stats.finished(!response.writableFinished && !brokenByUs);
    wake?.();
  });
  response.on('error', ignore);

  const head = (status: number, own: readonly string[]): void => {
    stats.answered(route, status);
    const all = headers();
    all.push(...own);
    response.writeHead(status, all);
  };
  return {
    requestId,
    isClosed: () => closed,
    /** Sends the status and headers; the body follows through `write` and `end`. */
    head,
    /** Sends a whole reply in this turn of the event loop. */
    reply(
      status: number,
      contentType: string | undefined,
      body: string | Uint8Array,
      own: readonly string[] = [],
    ): void {
      if (closed) return;
      const bytes = typeof body === 'string' ? Buffer.from(body) : bytesOf(body);
      stats.answered(route, status);
      const all = headers();
      if (contentType !== undefined) all.push('content-type', contentType);
      all.push('content-length', String(bytes.length), ...own);
      response.writeHead(status, all);
      sendTogether(response, bytes);
    },
    /**
     * Writes a piece. Resolves with true when the next piece can follow, and with false when the client has disconnected.
     */
    async write(piece: string | Uint8Array): Promise<boolean> {
      if (closed) return false;
      if (response.write(piece)) return true;
      await new Promise<void>((resolve) => {
        wake = resolve;
        response.once('drain', resolve);
      });
      wake = undefined;
      return !closed;
    },
    end(piece?: string): void {
      if (closed) return;
      if (piece === undefined) response.end();
      else response.end(piece);
    },
    /** Waits. Resolves early, with false, when the client disconnects. */
    async pause(ms: number): Promise<boolean> {
      if (closed) return false;
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, ms);
        wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      wake = undefined;
      return !closed;
    },
    /** Sends RST: the client sees the connection reset. */
    reset(): void {
      brokenByUs = true;
      request.socket.resetAndDestroy();
    },
    /** Sends FIN after the written bytes, even if the HTTP body is incomplete. */
    cut(): void {
      brokenByUs = true;
      // Node 26 gives the written bytes to the socket at the end of the turn.
      setImmediate(() => request.socket.destroySoon());
    },
  };
}

// A socket that fails during a write also closes, and the exchange handles its close event.
function ignore(): void {}

function bytesOf(body: Uint8Array): Buffer {
  return Buffer.isBuffer(body) ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength);
}
