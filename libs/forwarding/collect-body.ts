import type { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Flow } from './exchange.ts';
import type { Faults } from './provider-faults.ts';

export type BodyCollector = {
  /** What the head told of the length; memory for it is there before the first byte is read. */
  expect: (bytes: number) => void;
  push: (chunk: Buffer) => void;
  sizeBytes: () => number;
  /** The whole body. It counts once from now on. */
  take: () => Buffer;
  /** Nothing of it is needed any more. */
  drop: () => void;
};

/** While a body comes, its pieces are there, and at its end the whole that is made of them beside them. */
const copies = 2;

/**
 * Collects the body of an answer within the memory of its call, and no more than `bytesMax` of it. While there is no memory
 * for more, the provider's socket is not read. `push` and `expect` throw `upstream_response_too_large` for what the call may
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
  let bytes = 0;
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

  return {
    expect: hold,
    push: (chunk) => {
      bytes += chunk.length;
      // As of requests: an answer of one piece leaves no others behind.
      if (chunks.length > 0) countTransferred(chunk.length);
      chunks.push(chunk);
      hold(bytes);
    },
    sizeBytes: () => bytes,
    take: () => {
      const [only] = chunks;
      const whole = chunks.length === 1 && only ? only : Buffer.concat(chunks, bytes);
      chunks.length = 0;
      give(Math.min(chargedBytes, bytes));
      return whole;
    },
    drop: () => {
      if (isWaiting) ended.abort();
      chunks.length = 0;
      give(0);
    },
  };
}
