import type { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Flow } from './exchange.ts';
import type { Faults } from './provider-faults.ts';
import { largeBytesMin } from './read-body.ts';

export type BodyCollector = {
  /** What the head told of the length; memory for it is there before the first byte is read. */
  expect: (bytes: number) => void;
  push: (chunk: Buffer) => void;
  sizeBytes: () => number;
  /** The whole body in one piece. It counts once from now on. */
  take: () => Buffer;
  /** A large body in pieces of memory that hold nothing else, and can be moved into a thread. It counts as before. */
  takeBlocks: () => Uint8Array<ArrayBuffer>[];
  /** From now on the body counts as so many bytes: what is there has become another. */
  keep: (bytes: number) => void;
  /** Nothing of it is needed any more. */
  drop: () => void;
};

/** Of a large body whose length nobody told. */
const blockBytes = 1_048_576;

/**
 * Collects the body of an answer within the memory of its call, and no more than `bytesMax` of it. A large one is copied
 * together while it comes, because at its end that would hold up other calls (60 MiB: 50 ms). While there is no memory for
 * more, the provider's socket is not read. `push` and `expect` throw `upstream_response_too_large` for what the call may
 * never hold; a wait that is too long aborts the flow with `server_overloaded`.
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
  /** Of the last block. */
  let filledBytes = 0;
  let expectedBytes = 0;
  let bytes = 0;
  /** While a body comes, its pieces are there, and at its end the whole that is made of them beside them. */
  let copies = 2;
  /** Bytes of the body for which memory was asked. */
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

  /** What was collected, which is forgotten here; nothing of the last block but what is filled. */
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
      // As of requests: an answer of one piece leaves no others behind.
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
