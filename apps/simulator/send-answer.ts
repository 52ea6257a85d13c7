import type { Exchange } from './exchange.ts';
import type { Frame } from './wire/wire-format.ts';

/** Frames are combined into writes of about this size: this reduces system calls, and back-pressure still limits memory. */
const writeSize = 32_768;

export type StreamOptions = {
  contentType: string;
  /** 0: as fast as the client reads. Otherwise one frame (a token) at a time, on a fixed schedule. */
  tokensPerSecond: number;
  /** Does not end the response, even after all frames were sent. */
  holdOpen?: boolean;
};

const streamHeaders = ['cache-control', 'no-cache'];

const json = {};

/** Sends a whole answer in this tick. It is JSON unless `contentType` specifies something else. */
export function sendBody(
  exchange: Exchange,
  body: Frame,
  { contentType = 'application/json', headers }: { contentType?: string; headers?: readonly string[] } = json,
): void {
  exchange.reply(200, contentType, body, headers);
}

/** Streams the frames. An unpaced stream of normal size is sent whole in this tick. */
export function sendFrames(exchange: Exchange, frames: Iterable<Frame>, options: StreamOptions): void | Promise<void> {
  if (exchange.isClosed()) return undefined;
  exchange.head(200, ['content-type', options.contentType, ...streamHeaders]);
  if (options.tokensPerSecond > 0) return sendPaced(exchange, frames, options);
  const iterator = frames[Symbol.iterator]();
  let gathered = '';
  for (let next = iterator.next(); next.done !== true; next = iterator.next()) {
    if (typeof next.value !== 'string') return sendBytes(exchange, next.value, iterator, options);
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
  iterator: Iterator<Frame>,
  options: StreamOptions,
): Promise<void> {
  let pending = gathered;
  for (let next = iterator.next(); next.done !== true; next = iterator.next()) {
    if (pending.length >= writeSize) {
      if (!(await exchange.write(pending))) return;
      pending = '';
    }
    pending += String(next.value); // A stream that began with text consists of text.
  }
  if ((await exchange.write(pending)) && options.holdOpen !== true) exchange.end();
}

/** A stream in a binary framing. */
async function sendBytes(
  exchange: Exchange,
  first: Uint8Array,
  iterator: Iterator<Frame>,
  options: StreamOptions,
): Promise<void> {
  let pending: Uint8Array[] = [first];
  let size = first.length;
  for (let next = iterator.next(); next.done !== true; next = iterator.next()) {
    if (size >= writeSize) {
      if (!(await exchange.write(Buffer.concat(pending)))) return;
      pending = [];
      size = 0;
    }
    const bytes = typeof next.value === 'string' ? Buffer.from(next.value) : next.value;
    pending.push(bytes);
    size += bytes.length;
  }
  if ((await exchange.write(Buffer.concat(pending))) && options.holdOpen !== true) exchange.end();
}

async function sendPaced(exchange: Exchange, frames: Iterable<Frame>, options: StreamOptions): Promise<void> {
  const startedAt = performance.now();
  let sent = 0;
  for (const text of frames) {
    // Measured from the start, not from the last frame, so that delays of timers do not add up.
    const dueMs = startedAt + (sent * 1_000) / options.tokensPerSecond - performance.now();
    if (dueMs >= 1 && !(await exchange.pause(dueMs))) return;
    if (!(await exchange.write(text))) return;
    sent++;
  }
  if (options.holdOpen !== true) exchange.end();
}
