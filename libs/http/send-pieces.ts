import type { ServerResponse } from 'node:http';

/** Beyond it a body is written piece by piece, each of which has to be taken within the stall limit. */
export const pieceBytes = 262_144;

/** A client that takes no 256 KiB of its answer in this time is cut off: 4 KiB/s, which any phone reads. */
export const stallTimeoutMsDefault = 60_000;

/**
 * Writes pieces as they come, and ends the response after the last (the rest is watched by the server). A client that does
 * not take what was written within `stallTimeoutMs` is cut off, and nothing more is asked of the source. Resolves with whether all was written and the response
 * ended; rejects as the source does, with the response still open.
 */
export async function sendPieces(
  response: ServerResponse,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  stallTimeoutMs: number,
): Promise<boolean> {
  for await (const piece of pieces) {
    if (response.destroyed) return false;
    if (response.write(piece) || (await drained(response, stallTimeoutMs))) continue;
    response.destroy();
    return false;
  }
  if (response.destroyed) return false;
  response.end();
  return true;
}

/** Resolves true when the client has taken what was written; false when it left, or did not within the time. */
export function drained(response: ServerResponse, timeoutMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    const settle = (isDrained: boolean): void => {
      clearTimeout(timer);
      response.off('drain', onDrain).off('close', onClose);
      resolve(isDrained);
    };
    const onDrain = (): void => settle(true);
    const onClose = (): void => settle(false);
    const timer = setTimeout(onClose, timeoutMs);
    response.on('drain', onDrain).on('close', onClose);
  });
}

/** The parts of a body, without copying it. */
export function* piecesOf(body: Buffer): Generator<Buffer> {
  for (let from = 0; from < body.length; from += pieceBytes) yield body.subarray(from, from + pieceBytes);
}
