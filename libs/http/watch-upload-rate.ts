import type { IncomingMessage } from 'node:http';
import { GatewayError } from '#libs/kernel/errors.ts';

export type UploadRate = {
  /** Of each window; 0: as slowly as it likes, but not silent. */
  bytesPerSecondMin: number;
  windowMs: number;
};

/** A phone in a tunnel has more than 1 KiB/s over half a minute; who sends a byte a second holds a connection for ever. */
export const defaultUploadRate: UploadRate = { bytesPerSecondMin: 1_024, windowMs: 30_000 };

/**
 * Tells, once, of a request whose body comes too slowly, by the invalid_request / `request_timeout` that it is to be answered
 * with. While it is paused, because whoever takes the bytes is the slow one, the client is not to blame. Returns what ends the
 * watch; the end of the request does, too.
 */
export function watchUploadRate(
  request: IncomingMessage,
  { bytesPerSecondMin, windowMs }: UploadRate,
  onTooSlow: (error: GatewayError) => void,
): () => void {
  const bytesMin = Math.max(1, (bytesPerSecondMin * windowMs) / 1_000);
  let bytes = 0;
  const count = (chunk: Buffer): void => {
    bytes += chunk.length;
  };
  const timer = setInterval(() => {
    if (bytes < bytesMin && !request.isPaused()) {
      stop();
      onTooSlow(tooSlow(bytes, bytesMin, windowMs));
    }
    bytes = 0;
  }, windowMs);
  const stop = (): void => {
    clearInterval(timer);
    request.off('data', count).off('end', stop).off('close', stop);
  };
  request.on('data', count).on('end', stop).on('close', stop);
  return stop;
}

function tooSlow(bytes: number, bytesMin: number, windowMs: number): GatewayError {
  const message =
    `Of the request body ${bytes} bytes came within ${windowMs} ms; at least ${Math.ceil(bytesMin)} are expected. ` +
    'Send it again over a faster connection, or in smaller parts.';
  return new GatewayError('invalid_request', 'request_timeout', message);
}
