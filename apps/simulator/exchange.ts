import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Stats } from './stats.ts';

/** One request with its reply: the only place that writes to the socket. */
export type Exchange = ReturnType<typeof createExchange>;

type Told = { route: string; stats: Stats; headers: () => string[]; requestId?: string };

/**
 * Follows one request to its end. `headers` (flat names and values) go with every status. When the client leaves, or
 * the simulator stops, pauses end early and nothing more is written; a client that left before the end is counted.
 */
export function createExchange(
  request: IncomingMessage,
  response: ServerResponse,
  { route, stats, headers, requestId = '' }: Told,
) {
  let closed = false;
  let brokenByUs = false;
  let wake: (() => void) | undefined; // at most one pause or drain is ever waited for
  stats.received(route);
  response.on('close', () => {
    closed = true;
    stats.finished(!response.writableFinished && !brokenByUs);
    wake?.();
  });
  // A socket that fails while it is written to also closes, which is handled above.
  response.on('error', () => {});

  const head = (status: number, own: readonly string[]): void => {
    stats.answered(route, status);
    response.writeHead(status, [...headers(), ...own]);
  };
  return {
    requestId,
    isClosed: () => closed,
    /** Sends status and headers; the body follows by `write` and `end`. */
    head,
    /** A whole reply, sent in this very tick. */
    reply(
      status: number,
      contentType: string | undefined,
      body: string | Uint8Array,
      own: readonly string[] = [],
    ): void {
      if (closed) return;
      const type = contentType === undefined ? [] : ['content-type', contentType];
      head(status, [...type, 'content-length', String(Buffer.byteLength(body)), ...own]);
      response.end(body);
    },
    /** Writes a piece; resolves when the next may follow, false when there is nobody left to write to. */
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
    /** Waits; resolves early, with false, when the client leaves. */
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
    /** RST: the client sees the connection reset. */
    reset(): void {
      brokenByUs = true;
      request.socket.resetAndDestroy();
    },
    /** FIN after what was written, whatever HTTP still owes. */
    cut(): void {
      brokenByUs = true;
      request.socket.destroySoon();
    },
  };
}
