import type { IncomingMessage, ServerResponse } from 'node:http';
import { paceBody } from '../request-context.ts';

// The maximum that a rejected client can still send: enough for a body that was already on its way.
const drainBytesMax = 16 * 1_048_576;
const drainMsMax = 5_000;
const unwantedBytesMax = 1_048_576;

// Reading a MiB takes 3 ms of the event loop. A rejected workspace can send 20 MiB per second, or less if its other
// requests send as much.
const drainStepBytes = 1_048_576;
const drainPauseMs = 50;

/**
 * Sends the whole body of an answer immediately, but ends the response only after the rest of the request has been read
 * and dropped. Beyond the bounds, the connection is closed instead. Closing earlier would make the kernel send a reset,
 * which can overtake the answer; reading without bounds would let a rejected client send forever. The caller has set
 * content-length. The rest of the request is not read if the client is too slow already (`isSlow`) or waits for "100
 * Continue".
 */
export function drainThenEnd(
  request: IncomingMessage,
  response: ServerResponse,
  body: Buffer,
  options: { isSlow: boolean },
): void {
  if (request.complete || !hasBody(request)) {
    response.end(body);
    return;
  }
  if (options.isSlow || request.headers.expect !== undefined) {
    response.setHeader('connection', 'close');
    response.end(body, () => request.destroy());
    return;
  }
  response.write(body);
  let dropped = 0;
  let step = 0;
  let pause: NodeJS.Timeout | undefined;
  const timer = setTimeout(() => stop(), drainMsMax);
  const clear = (): void => {
    clearTimeout(timer);
    clearTimeout(pause);
  };
  const stop = (): void => {
    clear();
    request.off('data', drop);
    response.end(() => request.destroy());
  };
  const drop = (chunk: Buffer): void => {
    dropped += chunk.length;
    if (dropped > drainBytesMax) return stop();
    step += chunk.length;
    if (step < drainStepBytes) return;
    const pauseMs = Math.max(drainPauseMs, paceBody(request, step));
    step = 0;
    request.pause();
    pause = setTimeout(() => request.resume(), pauseMs);
  };
  request.on('data', drop);
  request.once('end', () => {
    clear();
    response.end();
  });
  request.once('close', clear);
  request.resume();
}

/**
 * Reads and drops a body that the route does not use (some clients send `{}` with every POST), while its handler runs.
 * A large or slow body closes the connection; Node alone would read it without a limit.
 */
export function discardBody(request: IncomingMessage): void {
  let dropped = 0;
  const timer = setTimeout(() => request.destroy(), drainMsMax);
  request.on('data', (chunk: Buffer) => {
    dropped += chunk.length;
    if (dropped > unwantedBytesMax) request.destroy();
  });
  request.once('close', () => clearTimeout(timer));
}

export function hasBody(request: IncomingMessage): boolean {
  const length = request.headers['content-length'];
  return length === undefined ? request.headers['transfer-encoding'] !== undefined : Number(length) > 0;
}
