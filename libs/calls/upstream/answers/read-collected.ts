import type { Limits } from '#libs/calls/call.ts';
import { toAbortSignal, type CallSignal } from '#libs/kernel/call-signal.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { Call, Provider, Translation } from '#libs/providers/provider.ts';
import type { AnswerThreads } from './answer-threads.ts';
import type { BodyCollector } from './collect-body.ts';
import type { Faults } from '../provider-faults.ts';
import { costToRead, isParsed, largeBytesMin, quickWorkMax, readBody, tooDeep, type BodyRead } from './read-body.ts';

/** The parts of an attempt that are needed to read its answer. */
export type ReadInput = {
  limits: Limits;
  provider: Provider;
  translation: Translation;
  call: Call;
  signal: CallSignal;
  faults: () => Faults;
  workspaceId: string | undefined;
  /** The lease to which the answer is charged while it is read; undefined: its memory is not counted. */
  memory: MemoryLease | undefined;
  /** Threads for answers that would block other calls; undefined: every answer is read in the main thread. */
  threads: AnswerThreads | undefined;
};

/**
 * Smaller answers are parsed without measuring, because their memory is freed immediately, and 2,048 levels fit on the
 * stack.
 */
const measuredBytesMin = 4_096;

/**
 * A large answer that passes unchanged is not parsed. Up to this size and work, finding its few members takes a
 * millisecond at most, and less than moving it to a thread and back: images, and vectors in base64.
 */
const quickScan = { sizeBytesMax: 1_048_576, workMax: 20_000 };

/**
 * Reads the body of a success: in the main thread if that is certainly quick, otherwise in another thread. The memory
 * for it is charged to the call meanwhile. Throws GatewayError, provider_failed for a body that cannot be read within
 * the limits of memory and time.
 */
export function readCollected(
  input: ReadInput,
  status: number,
  collected: BodyCollector,
): BodyRead | Promise<BodyRead> {
  const { threads, call, translation, limits, memory, signal, faults } = input;
  const { sizeBytes } = collected;
  const isScanned = !isParsed(input, sizeBytes);
  const isLarge = threads !== undefined && sizeBytes >= largeBytesMin;
  if (isLarge && !(isScanned && sizeBytes <= quickScan.sizeBytesMax)) {
    return readElsewhere(input, status, collected, collected.takeBlocks());
  }
  const bytes = collected.take();
  const body = { bytes, status, call, translation, memberBytesMax: limits.errorBytesMax };
  // The memory of a large body contains nothing else.
  if (isLarge && !isQuickToScan(bytes)) {
    return readElsewhere(input, status, collected, [bytes as Buffer<ArrayBuffer>]);
  }
  if (sizeBytes < measuredBytesMin || isScanned) return readBody(body);
  const bytesMax = memory === undefined ? Number.POSITIVE_INFINITY : memory.leaseBytesMax - memory.usedBytes;
  const cost = costToRead(bytes, threads === undefined ? { bytesMax } : { bytesMax, workMax: quickWorkMax });
  if (cost.excess === 'depth') throw faults().invalid(tooDeep);
  if (cost.excess === 'bytes') throw faults().tooComplex(cost.bytes, bytesMax);
  if (cost.excess === 'work') return readElsewhere(input, status, collected, [copyOf(bytes)]);
  const read = (): BodyRead => {
    try {
      return readBody(body);
    } finally {
      memory?.give(cost.bytes);
    }
  };
  if (memory === undefined || memory.tryCharge(cost.bytes)) return read();
  return memory.chargeWhenFree(cost.bytes, toAbortSignal(signal)).then(read);
}

const isQuickToScan = (bytes: Buffer): boolean =>
  costToRead(bytes, { bytesMax: Number.POSITIVE_INFINITY, workMax: quickScan.workMax }).excess === null;

async function readElsewhere(
  { threads, provider, call, translation, limits, memory, signal, faults, workspaceId }: ReadInput,
  status: number,
  collected: BodyCollector,
  blocks: Uint8Array<ArrayBuffer>[],
): Promise<BodyRead> {
  if (threads === undefined) throw new Error('no threads are available to parse an answer');
  return await threads.read({
    provider,
    call,
    translation,
    status,
    memberBytesMax: limits.errorBytesMax,
    blocks,
    sizeBytes: collected.sizeBytes,
    keep: (bytes) => collected.keep(bytes),
    memory,
    signal: toAbortSignal(signal),
    faults,
    workspaceId,
  });
}

/** Copies the bytes to separate memory, which can be moved. */
function copyOf(bytes: Buffer): Uint8Array<ArrayBuffer> {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(copy);
  return copy;
}
