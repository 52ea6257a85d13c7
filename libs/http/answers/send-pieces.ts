import type { ServerResponse } from 'node:http';

/** Larger bodies are written piece by piece, and the client must read each piece within the stall timeout. */
export const pieceBytes = 262_144;

/**
 * A client that reads less than 256 KiB of its answer in this time is disconnected. That is 4 KiB/s, which any phone
 * achieves.
 */
export const stallTimeoutMsDefault = 60_000;

/**
 * Writes pieces as they arrive, and ends the response after the last one; the server monitors the end. If the client
 * does not read the written bytes within `stallTimeoutMs`, it is disconnected and the source is not read any further.
 * Resolves with true if everything was written and the response ended. Rejects like the source, with the response still
 * open.
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

/** Resolves with true when the client has read the written bytes, or false if it disconnected or took too long. */
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

/** The pieces of a body, without copying. */
export function* piecesOf(body: Buffer): Generator<Buffer> {
  for (let from = 0; from < body.length; from += pieceBytes) yield body.subarray(from, from + pieceBytes);
}

/**
 * Answers with a list whose items are JSON already, item by item. `name`: the member that contains the items. `rest`: the
 * members that follow it.
 */
export async function sendJsonList(
  response: ServerResponse,
  { object, name, items, rest }: { object: string; name: string; items: Iterable<Buffer>; rest: object },
  stallTimeoutMs: number,
): Promise<void> {
  response.setHeader('content-type', 'application/json; charset=utf-8');
  await sendPieces(response, listPieces(`{"object":"${object}","${name}":[`, items, rest), stallTimeoutMs);
}

function* listPieces(head: string, items: Iterable<Buffer>, rest: object): Generator<Buffer> {
  yield Buffer.from(head);
  let isFirst = true;
  for (const item of items) {
    if (!isFirst) yield Buffer.from(',');
    isFirst = false;
    yield item;
  }
  yield Buffer.from(`],${JSON.stringify(rest).slice(1)}`);
}
