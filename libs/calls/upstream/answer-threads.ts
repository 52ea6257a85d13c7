import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import { spliceMembers } from '#libs/kernel/json-members.ts';
import type { Call, Provider } from '#libs/providers/provider.ts';
import { createThreadLane, type ThreadLaneOptions } from '#libs/threads/thread-lane.ts';
import { asksForBase64 } from './embedding-format.ts';
import type { Faults } from './provider-faults.ts';
import { isParsed, tooDeep, type BodyRead, type SuccessBody } from './read-body.ts';
import type { AnswerFound, AnswerWork } from './read-answer-worker.ts';

/** A body in pieces that move into the thread: they are empty afterwards. */
export type BodyInPieces = Omit<SuccessBody, 'bytes'> & {
  provider: Provider;
  blocks: readonly Uint8Array<ArrayBuffer>[];
  sizeBytes: number;
  /** What the body counts as from now on. */
  keep: (bytes: number) => void;
  memory: MemoryLease | undefined;
  signal: AbortSignal;
  faults: () => Faults;
  workspaceId: string | undefined;
};

export type AnswerThreads = {
  /**
   * As `readBody`, in a thread; what that takes is charged to the call meanwhile, and waited for. Throws GatewayError:
   * provider_failed for a body that cannot be read in memory or time, `server_overloaded` when there was no memory for too
   * long, and the reason of `signal`.
   */
  read: (body: BodyInPieces) => Promise<BodyRead>;
  stats: () => { begun: number; running: number; waiting: number };
  stop: () => Promise<void>;
};

const mebibyte = 1_048_576;
/** The parser cannot be interrupted, so a thread's heap has to bear more than any call may take: estimates may be a third too low. */
const heapShare = 2;

/** Where answers are read that would hold up other calls. `leaseBytesMax`: what one call may ever hold. */
export function createAnswerThreads(
  options: Pick<ThreadLaneOptions, 'threads'> & {
    leaseBytesMax: number;
    /** 60 MiB that have to be translated take some seconds of a busy machine. */
    timeoutMs?: number;
  },
): AnswerThreads {
  const { threads, leaseBytesMax, timeoutMs = 60_000 } = options;
  // Nobody is turned away here, after the call was paid for: what waits is bounded by its memory.
  const lane = createThreadLane<AnswerWork, AnswerFound>({
    threads,
    module: new URL('./read-answer-worker.ts', import.meta.url),
    threadMemoryMb: Math.max(256, Math.ceil((heapShare * leaseBytesMax) / mebibyte)),
    idleTimeoutMs: 30_000,
  });

  const run = async (body: BodyInPieces, work: AnswerWork): Promise<AnswerFound> => {
    const { signal, workspaceId = '', faults } = body;
    const moved = new Set(work.blocks.map(({ buffer }) => buffer as ArrayBuffer));
    const found = await lane.run(work, { timeoutMs, group: workspaceId, signal, moved: [...moved] });
    if (found === null) throw faults().notRead(timeoutMs);
    return found;
  };

  const measured = async (body: BodyInPieces): Promise<{ bytes: Uint8Array; parseBytes: number }> => {
    const { blocks, memory, sizeBytes, keep, faults } = body;
    const bytesMax = memory === undefined ? Number.POSITIVE_INFINITY : memory.leaseBytesMax - memory.usedBytes;
    const found = await run(body, { step: 'measure', blocks, bytesMax });
    if (found.kind !== 'measured') throw new Error(`an answer was not measured but ${found.kind}`);
    const { bytes, cost } = found;
    if (cost.excess === 'depth') throw faults().invalid(tooDeep);
    if (cost.excess !== null) throw faults().tooComplex(cost.bytes, bytesMax);
    keep(sizeBytes);
    return { bytes, parseBytes: cost.bytes };
  };

  return {
    async read(body) {
      const { call, provider, sizeBytes, status, memberBytesMax, memory, signal, keep } = body;
      const { operation, stream, includeUsage, strict } = call;
      const sent = { provider: provider.id, operation, stream, includeUsage, strict, status, memberBytesMax };
      let { blocks }: { blocks: readonly Uint8Array[] } = body;
      // Beside the body: its value, and what is made of it.
      let moreBytes = asksForBase64(call) ? sizeBytes : 0;
      if (isParsed(body, sizeBytes)) {
        const { bytes, parseBytes } = await measured(body);
        blocks = [bytes];
        moreBytes = parseBytes + sizeBytes;
      }
      const freeBytes = memory === undefined ? Number.POSITIVE_INFINITY : memory.leaseBytesMax - memory.usedBytes;
      // It will never fit: to wait for memory would end as an error that looks as if it passed, and be paid for again.
      if (moreBytes > freeBytes) throw body.faults().tooComplex(moreBytes, freeBytes);
      await memory?.chargeWhenFree(moreBytes, signal);
      try {
        const found = await run(body, { step: 'read', ...sent, blocks, request: requestOf(call) });
        if (found.kind === 'measured') throw new Error('an answer was measured, not read');
        if (found.kind !== 'answer') return found;
        const { buffer, byteOffset, byteLength } = found.bytes;
        keep(byteLength);
        return { ...found, bytes: Buffer.from(buffer, byteOffset, byteLength) };
      } finally {
        memory?.give(moreBytes);
      }
    },
    stats: () => lane.stats(),
    stop: () => lane.stop(),
  };
}

const asked = { messages: undefined, input: undefined, prompt: undefined };

/** The request as it was sent, without what was asked: an answer is read without that, and it may be 10 MiB. */
function requestOf({ body, edits }: Call): string {
  return body.length === 0 ? '' : spliceMembers(body, { ...edits, ...asked }).toString();
}
