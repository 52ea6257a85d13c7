import type { ServerResponse } from 'node:http';
import { batchPerTurn } from '#libs/kernel/batch-per-turn.ts';
import { pieceBytes, piecesOf, sendPieces, stallTimeoutMsDefault } from './send-pieces.ts';

type Ending = { response: ServerResponse; body: Buffer; stallTimeoutMs: number };

// For a larger body, the copy costs more than it saves.
const textBytesMax = 16_384;

const end = batchPerTurn(({ response, body, stallTimeoutMs }: Ending): void => {
  // Head and body are written as one latin1 text. As two pieces, the system call costs more.
  if (body.length <= textBytesMax) response.end(body.toString('latin1'), 'latin1');
  else if (body.length <= pieceBytes) response.end(body);
  else void sendPieces(response, piecesOf(body), stallTimeoutMs);
});

/**
 * Ends a response, whose head has been written, with its whole body, and sends it together with all others that end in this
 * turn of the event loop. This saves a busy API a quarter of a call's processor time. A client that does not read a piece
 * of a large body within `stallTimeoutMs` is disconnected.
 */
export function sendTogether(response: ServerResponse, body: Buffer, stallTimeoutMs = stallTimeoutMsDefault): void {
  end({ response, body, stallTimeoutMs });
}
