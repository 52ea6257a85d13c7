import type { ServerResponse } from 'node:http';
import { batchPerTurn } from '#libs/kernel/batch-per-turn.ts';
import { pieceBytes, piecesOf, sendPieces, stallTimeoutMsDefault } from './send-pieces.ts';

type Ending = { response: ServerResponse; body: Buffer; stallTimeoutMs: number };

// Beyond this the second copy of the body costs more than it saves.
const textBytesMax = 16_384;

const end = batchPerTurn(({ response, body, stallTimeoutMs }: Ending): void => {
  // Head and body leave as one text, each byte of it a character: as two pieces they cost the system call more.
  if (body.length <= textBytesMax) response.end(body.toString('latin1'), 'latin1');
  else if (body.length <= pieceBytes) response.end(body);
  else void sendPieces(response, piecesOf(body), stallTimeoutMs);
});

/**
 * Ends a response, whose head is written, with its whole body, together with all others that end in this turn of the
 * event loop: of a busy API that saves a quarter of a call's processor time. A client that does not take a piece of a large
 * one within `stallTimeoutMs` is cut off.
 */
export function sendTogether(response: ServerResponse, body: Buffer, stallTimeoutMs = stallTimeoutMsDefault): void {
  end({ response, body, stallTimeoutMs });
}
