import type { IncomingMessage } from 'node:http';
import { GatewayError } from '#libs/kernel/errors.ts';

export type UploadRate = {
  /** The minimum in each window. 0 allows any rate but not silence. */
  bytesPerSecondMin: number;
  windowMs: number;
};

/**
 * A phone in a tunnel has more than 1 KiB/s over half a minute. Without this limit, one byte a second would hold a
 * connection forever.
 */
export const defaultUploadRate: UploadRate = { bytesPerSecondMin: 1_024, windowMs: 30_000 };

/**
 * Calls back once if the body of a request arrives too slowly, with the invalid_request / `request_timeout` to answer
 * with. Time during which the request is paused does not count, because the reader is slow in that case. Returns a
 * function that ends the watch; the end of the request does so too.
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
  const message = `The request body is arriving too slowly: ${bytes} bytes within ${windowMs} ms, but at least ${Math.ceil(bytesMin)} are expected. Send it again over a faster connection, or in smaller parts.`;
  return new GatewayError('invalid_request', 'request_timeout', message);
}
