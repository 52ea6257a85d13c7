import type { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Flow } from '../egress/exchange.ts';
import type { Faults } from '../provider-faults.ts';
import { largeBytesMin } from './read-body.ts';

export type BodyCollector = {
  /** The length in the head. Memory for it is acquired before the first byte is read. */
  expect: (bytes: number) => void;
  push: (chunk: Buffer) => void;
  sizeBytes: () => number;
  /** Returns the whole body in one piece. From now on it is counted once. */
  take: () => Buffer;
  /**
   * Returns a large body in pieces that can be moved into a thread, because their memory contains nothing else. It is
   * counted as before.
   */
  takeBlocks: () => Uint8Array<ArrayBuffer>[];
  /** Sets the bytes that are counted for the body, because something else has replaced it. */
  keep: (bytes: number) => void;
  /** Call this when no part of it is needed any more. */
  drop: () => void;
};

/** The block size for a large body of unknown length. */
const blockBytes = 1_048_576;

/**
 * Collects at most `bytesMax` of an answer's body within the memory of its call. A large body is copied together while
 * it arrives, because doing that at the end would block other calls (60 MiB: 50 ms). While there is no memory, the
 * provider's socket is not read. `push` and `expect` throw `upstream_response_too_large` if the body needs more than
 * the call can ever hold. A wait that is too long aborts the flow with `server_overloaded`.
 */
export function collectBody(options: {
  memory: MemoryLease | undefined;
  flow: () => Flow | undefined;
  faults: () => Faults;
  bytesMax: number;
}): BodyCollector {
  const { memory, flow, faults, bytesMax } = options;
  const ended = new AbortController();
  const chunks: Buffer[] = [];
  const blocks: Buffer<ArrayBuffer>[] = [];
  /** How many bytes of the last block are used. */
  let filledBytes = 0;
  let expectedBytes = 0;
  let bytes = 0;
  /** Memory holds both the pieces and, at the end, the whole body that is copied from them. */
  let copies = 2;
  /** Bytes of the body for which memory was acquired. */
  let asked = 0;
  let chargedBytes = 0;
  let owedBytes = 0;
  let isWaiting = false;

  const hold = (upTo: number): void => {
    if (upTo > bytesMax) throw faults().tooLarge('a body', bytesMax);
    if (memory === undefined || upTo <= asked) return;
    const more = copies * (upTo - asked);
    const freeBytes = memory.leaseBytesMax - memory.usedBytes - owedBytes;
    if (more > freeBytes) throw faults().tooLarge('a body', asked + Math.floor(freeBytes / copies));
    asked = upTo;
    if (!isWaiting && memory.tryCharge(more)) {
      chargedBytes += more;
      return;
    }
    owedBytes += more;
    if (!isWaiting) void wait(memory);
  };

  const wait = async (lease: MemoryLease): Promise<void> => {
    isWaiting = true;
    flow()?.pause();
    try {
      while (owedBytes > 0) {
        const more = owedBytes;
        await lease.chargeWhenFree(more, ended.signal);
        owedBytes -= more;
        chargedBytes += more;
        if (ended.signal.aborted) return give(0);
      }
      isWaiting = false;
      flow()?.resume();
    } catch (error) {
      flow()?.abort(error as GatewayError);
    }
  };

  const give = (upTo: number): void => {
    memory?.give(chargedBytes - upTo);
    chargedBytes = upTo;
  };

  const fill = (chunk: Buffer): void => {
    for (let from = 0; from < chunk.length;) {
      let block = blocks.at(-1);
      if (block === undefined || filledBytes === block.length) {
        block = Buffer.allocUnsafeSlow(blocks.length === 0 && expectedBytes > 0 ? expectedBytes : blockBytes);
        blocks.push(block);
        filledBytes = 0;
      }
      const copied = chunk.copy(block, filledBytes, from);
      filledBytes += copied;
      from += copied;
    }
  };

  /** Returns the collected pieces and forgets them. Only the used part of the last block is included. */
  const collected = (): Buffer[] => {
    const pieces = [
      ...chunks,
      ...blocks.slice(0, -1),
      ...blocks.slice(-1).map((last) => last.subarray(0, filledBytes)),
    ];
    chunks.length = 0;
    blocks.length = 0;
    return pieces;
  };

  return {
    expect: (length) => {
      expectedBytes = length;
      if (length >= largeBytesMin) copies = 1;
      hold(length);
    },
    push: (chunk) => {
      // Like for requests: an answer in one piece is copied, so that it does not retain other buffers in memory.
      if (bytes > 0) countTransferred(chunk.length);
      bytes += chunk.length;
      hold(bytes);
      if (bytes < largeBytesMin) return void chunks.push(chunk);
      for (const piece of chunks) fill(piece);
      chunks.length = 0;
      fill(chunk);
    },
    sizeBytes: () => bytes,
    take: () => {
      const pieces = collected();
      const [only] = pieces;
      give(Math.min(chargedBytes, bytes));
      return pieces.length === 1 && only ? only : Buffer.concat(pieces, bytes);
    },
    takeBlocks: () => collected() as Uint8Array<ArrayBuffer>[],
    keep: give,
    drop: () => {
      if (isWaiting) ended.abort();
      collected();
      give(0);
    },
  };
}
