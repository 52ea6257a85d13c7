import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { spliceMembers } from '#libs/kernel/json/json-members.ts';
import type { Call, Provider } from '#libs/providers/provider.ts';
import { createThreadLane, type ThreadLaneOptions } from '#libs/threads/thread-lane.ts';
import { asksForBase64 } from './embedding-format.ts';
import type { Faults } from '../provider-faults.ts';
import { isParsed, tooDeep, type BodyRead, type SuccessBody } from './read-body.ts';
import type { AnswerFound, AnswerWork } from './read-answer-worker.ts';

/** A body in pieces that are moved into the thread and are empty afterwards. */
export type BodyInPieces = Omit<SuccessBody, 'bytes'> & {
  provider: Provider;
  blocks: readonly Uint8Array<ArrayBuffer>[];
  sizeBytes: number;
  /** The memory that the body takes from now on. */
  keep: (bytes: number) => void;
  memory: MemoryLease | undefined;
  signal: AbortSignal;
  faults: () => Faults;
  workspaceId: string | undefined;
};

export type AnswerThreads = {
  /**
   * Like `readBody`, but in a thread. Waits for the memory that this takes, which is charged to the call meanwhile.
   * Throws GatewayError: provider_failed for a body that cannot be read within its limits of memory or time,
   * `server_overloaded` when there was no memory for too long, and the reason of `signal`.
   */
  read: (body: BodyInPieces) => Promise<BodyRead>;
  stats: () => { begun: number; running: number; waiting: number };
  stop: () => Promise<void>;
};

const mebibyte = 1_048_576;
/**
 * The parser cannot be interrupted, so a thread's heap must be larger than the memory that a call can take: estimates
 * can be a third too low.
 */
const heapShare = 2;

/**
 * Makes the threads that read answers which would block other calls. `leaseBytesMax`: the maximum that one call can
 * hold.
 */
export function createAnswerThreads(
  options: Pick<ThreadLaneOptions, 'threads'> & {
    leaseBytesMax: number;
    /** On a busy machine, 60 MiB that have to be translated take some seconds. */
    timeoutMs?: number;
  },
): AnswerThreads {
  const { threads, leaseBytesMax, timeoutMs = 60_000 } = options;
  // No answer is rejected here, because its call has to be paid for. Their memory limits how many wait.
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
    if (found.kind !== 'measured') throw new Error(`expected a measured answer, got ${found.kind}`);
    const { bytes, cost } = found;
    if (cost.excess === 'depth') throw faults().invalid(tooDeep);
    if (cost.excess !== null) throw faults().tooComplex(cost.bytes, bytesMax);
    keep(sizeBytes);
    return { bytes, parseBytes: cost.bytes };
  };

  return {
    async read(body) {
      const { call, provider, sizeBytes, status, memberBytesMax, memory, signal, keep } = body;
      const { operation, model, stream, includeUsage, strict } = call;
      const sent = { provider: provider.id, operation, model, stream, includeUsage, strict, status, memberBytesMax };
      let { blocks }: { blocks: readonly Uint8Array[] } = body;
      // Memory in addition to the body: its value, and the translation.
      let moreBytes = asksForBase64(call) ? sizeBytes : 0;
      if (isParsed(body, sizeBytes)) {
        const { bytes, parseBytes } = await measured(body);
        blocks = [bytes];
        moreBytes = parseBytes + sizeBytes;
      }
      const freeBytes = memory === undefined ? Number.POSITIVE_INFINITY : memory.leaseBytesMax - memory.usedBytes;
      // The value will never fit. Waiting for memory would end with a retryable error, and the call would be paid for
      // again.
      if (moreBytes > freeBytes) throw body.faults().tooComplex(moreBytes, freeBytes);
      await memory?.chargeWhenFree(moreBytes, signal);
      try {
        const found = await run(body, { step: 'read', ...sent, blocks, request: requestOf(call) });
        if (found.kind === 'measured') throw new Error('expected a parsed answer, got a measured one');
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

/** The request as it was sent, without the messages, which can have 10 MiB and are not needed to read an answer. */
function requestOf({ body, edits }: Call): string {
  return body.length === 0 ? '' : spliceMembers(body, { ...edits, ...asked }).toString();
}
