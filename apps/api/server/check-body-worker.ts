import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { move, transferableSymbol, valueSymbol } from 'piscina';
import type { LargeBodyTask } from '#libs/http/bodies/large-body.ts';
import { GatewayError, type ErrorKind } from '#libs/kernel/errors.ts';
import { checkLargeBody } from './check-large-body.ts';

// Lower priority than live work. On Linux each thread has its own priority; elsewhere this would slow down the whole
// process.
if (process.platform === 'linux' && !isMainThread) setPriority(0, 5);

export type LargeBodyRefusal = {
  refusal: { kind: ErrorKind; code: string | null; message: string; param: string | null };
};

/** Runs in a thread. The bytes are moved in and out. */
export default function checkInThread({ pieces, ...task }: LargeBodyTask): unknown {
  const bytes = join(pieces);
  try {
    const found = checkLargeBody(bytes, task);
    if (found === null) throw new Error('a thread got a body with the limit of work for the main thread');
    return move({ [transferableSymbol]: [bytes.buffer], [valueSymbol]: found });
  } catch (error) {
    free(bytes);
    if (!(error instanceof GatewayError)) throw error;
    const { kind, code, message, param } = error;
    return { refusal: { kind, code, message, param } } satisfies LargeBodyRefusal;
  }
}

function join(pieces: readonly Uint8Array[]): Buffer {
  const [only] = pieces;
  if (pieces.length === 1 && only !== undefined) return Buffer.from(only.buffer, only.byteOffset, only.length);
  const bytes = Buffer.allocUnsafeSlow(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
    free(piece);
  }
  return bytes;
}

/** An idle thread's garbage collector has no reason to run. */
const free = ({ buffer }: Uint8Array): void => void (buffer as ArrayBuffer).transfer(0);
