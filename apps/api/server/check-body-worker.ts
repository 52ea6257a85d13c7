import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { move, transferableSymbol, valueSymbol } from 'piscina';
import type { BatchEndpoint } from '#libs/contracts/batches/batches.ts';
import { headNames, type BodyHead, type LargeBodyFindings, type LargeBodyTask } from '#libs/http/bodies/large-body.ts';
import { parseJsonBytes } from '#libs/http/bodies/parse-json-bytes.ts';
import { GatewayError, type ErrorKind } from '#libs/kernel/errors.ts';
import { rememberedMembersMax, scanMembers } from '#libs/kernel/json/json-members.ts';
import { createBodyCheck } from '#libs/validation/lines/check-body.ts';

// Lower priority than live work. On Linux each thread has its own priority; elsewhere this would slow down the whole
// process.
if (process.platform === 'linux' && !isMainThread) setPriority(0, 5);

export type LargeBodyRefusal = {
  refusal: { kind: ErrorKind; code: string | null; message: string; param: string | null };
};

/** Runs in a thread: does for a large body what `readJsonBody` does for a small one, and checks its contract. */
export default function judgeInThread({ pieces, ...task }: LargeBodyTask): unknown {
  const bytes = joined(pieces);
  try {
    const found = judge(bytes, task);
    return move({ [transferableSymbol]: [bytes.buffer], [valueSymbol]: found });
  } catch (error) {
    free(bytes);
    if (!(error instanceof GatewayError)) throw error;
    const { kind, code, message, param } = error;
    return { refusal: { kind, code, message, param } } satisfies LargeBodyRefusal;
  }
}

function judge(bytes: Buffer, { limits, contract, usedBytes, leaseBytesMax }: Omit<LargeBodyTask, 'pieces'>) {
  // Counted here, but charged in the main thread. The number of threads bounds the memory that they use together.
  const lease = {
    usedBytes,
    leaseBytesMax,
    charge: (more: number): void => void (lease.usedBytes += more),
    give: (less: number): void => void (lease.usedBytes -= less),
  };
  const value = parseJsonBytes(bytes, limits, lease);
  if (contract !== null) createBodyCheck(contract as BatchEndpoint)(value);
  const head = headOf(value);
  const members = head === null || Array.isArray(value) ? null : membersOf(bytes);
  return { bytes, head, members, usedBytes: lease.usedBytes } satisfies LargeBodyFindings;
}

function headOf(value: unknown): BodyHead {
  if (typeof value !== 'object' || value === null) return null;
  const members = headNames.filter((name) => Object.hasOwn(value, name));
  return Object.fromEntries(members.map((name) => [name, (value as Record<string, unknown>)[name]]));
}

/** Cloning the members of a large object would take longer than finding them. */
function membersOf(bytes: Buffer): LargeBodyFindings['members'] {
  const members = scanMembers(bytes);
  return members.length <= rememberedMembersMax ? members : null;
}

/** Joins the pieces and empties them, because an idle thread's garbage collector has no reason to run. */
function joined(pieces: readonly Uint8Array[]): Buffer {
  const bytes = Buffer.allocUnsafeSlow(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
    free(piece);
  }
  return bytes;
}

const free = ({ buffer }: Uint8Array): void => void (buffer as ArrayBuffer).transfer(0);
