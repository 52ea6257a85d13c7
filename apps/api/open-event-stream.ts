import type { Request, Response } from 'express';
import type { Caller } from '#libs/http/caller.ts';
import { drained } from '#libs/http/send-pieces.ts';

export type EventStreamDeps = {
  /** Throws when the key of the stream has been revoked or has expired. */
  authenticate: (request: Request) => Caller | Promise<Caller>;
  stallTimeoutMs: number;
};

/** A comment is sent after this long without an event, because proxies cut silent connections. The key is checked as often. */
export const heartbeatMs = 15_000;

export type OpenEventStream = {
  /** False: the client has gone, or did not read for the stall timeout. */
  send(frames: string): Promise<boolean>;
  /** Whether the key of the stream still exists; it is asked for once in a heartbeat. */
  isAllowed(): Promise<boolean>;
};

/** Begins an answer of server-sent events (WHATWG HTML 9.2), which tells the client that it is open. */
export async function openEventStream(
  { authenticate, stallTimeoutMs }: EventStreamDeps,
  request: Request,
  response: Response,
): Promise<OpenEventStream> {
  response.setHeader('content-type', 'text/event-stream; charset=utf-8');
  response.setHeader('cache-control', 'no-store');
  response.setHeader('x-accel-buffering', 'no');
  response.flushHeaders();
  const send = async (frames: string): Promise<boolean> => {
    if (response.destroyed) return false;
    return response.write(frames) || (await drained(response, stallTimeoutMs));
  };
  let checkedMs = performance.now();
  // Clients know by `open` that everything from now on arrives.
  await send('retry: 1000\nevent: open\ndata: {}\n\n');
  return {
    send,
    async isAllowed() {
      if (performance.now() - checkedMs < heartbeatMs) return true;
      checkedMs = performance.now();
      try {
        await authenticate(request);
        return true;
      } catch {
        return false;
      }
    },
  };
}
