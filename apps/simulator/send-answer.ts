import type { Exchange } from './exchange.ts';

/** Frames are gathered into writes of about this size: fewer system calls, and back-pressure still bounds memory. */
const writeSize = 32_768;

export type StreamOptions = {
  contentType: string;
  /** 0: as fast as the client reads. Otherwise one frame (a token) at a time, on a fixed schedule. */
  tokensPerSecond: number;
  /** Never ends the response, though all was sent. */
  holdOpen?: boolean;
};

const streamHeaders = ['cache-control', 'no-cache'];

/** A whole JSON answer, in this tick. */
export function sendJson(exchange: Exchange, body: string): void {
  exchange.reply(200, 'application/json', body);
}

/** Streams the frames. An unpaced stream of ordinary size is sent whole in this tick. */
export function sendFrames(exchange: Exchange, frames: Iterable<string>, options: StreamOptions): void | Promise<void> {
  if (exchange.isClosed()) return undefined;
  exchange.head(200, ['content-type', options.contentType, ...streamHeaders]);
  if (options.tokensPerSecond > 0) return sendPaced(exchange, frames, options);
  const iterator = frames[Symbol.iterator]();
  let gathered = '';
  for (let next = iterator.next(); next.done !== true; next = iterator.next()) {
    gathered += next.value;
    if (gathered.length >= writeSize) return sendRest(exchange, gathered, iterator, options);
  }
  if (options.holdOpen === true) return exchange.write(gathered).then(() => undefined);
  exchange.end(gathered);
  return undefined;
}

async function sendRest(
  exchange: Exchange,
  gathered: string,
  iterator: Iterator<string>,
  options: StreamOptions,
): Promise<void> {
  let pending = gathered;
  for (let next = iterator.next(); next.done !== true; next = iterator.next()) {
    if (pending.length >= writeSize) {
      if (!(await exchange.write(pending))) return;
      pending = '';
    }
    pending += next.value;
  }
  if ((await exchange.write(pending)) && options.holdOpen !== true) exchange.end();
}

async function sendPaced(exchange: Exchange, frames: Iterable<string>, options: StreamOptions): Promise<void> {
  const startedAt = performance.now();
  let sent = 0;
  for (const text of frames) {
    // Against the start and not the last frame, so that late timers do not add up.
    const dueMs = startedAt + (sent * 1_000) / options.tokensPerSecond - performance.now();
    if (dueMs >= 1 && !(await exchange.pause(dueMs))) return;
    if (!(await exchange.write(text))) return;
    sent++;
  }
  if (options.holdOpen !== true) exchange.end();
}
