import type { LargeBodies, LargeBodyFindings, LargeBodyTask } from '#libs/http/bodies/large-body.ts';
import { joinedBytesMax } from '#libs/http/bodies/body-pieces.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createThreadLane, type ThreadLaneOptions } from '#libs/threads/thread-lane.ts';
import type { LargeBodyRefusal } from './check-body-worker.ts';
import { checkLargeBody } from './check-large-body.ts';

/** The worst body below this takes about 30 ms. A chat of ten thousand words has 60 KiB. */
const sizeBytesMin = 262_144;

/**
 * A body within both limits takes at most 5 ms, and one of a few long texts a tenth of that. Moving it to a thread and
 * back takes longer, as most of its cost is the garbage that this leaves in both threads.
 */
const quick = { sizeBytesMax: joinedBytesMax, workMax: 20_000 };

// The worst body takes a tenth of a second. The rest of the time is for starting a thread on a busy machine.
const timeoutMs = 10_000;

// The memory budget also bounds the bodies that wait.
const waitingMax = { ofGroup: 32, ofAll: 256 };

/** Parses and checks large bodies: those with little work here, others in threads, so that they do not block other calls. */
export function createLargeBodies({ threads }: Pick<ThreadLaneOptions, 'threads'>): LargeBodies & {
  /** The bodies that were moved to threads since the start, and those that are or wait there now. */
  stats: () => { begun: number; running: number; waiting: number };
  stop: () => Promise<void>;
} {
  const lane = createThreadLane<LargeBodyTask, LargeBodyFindings | LargeBodyRefusal>({
    module: new URL('./check-body-worker.ts', import.meta.url),
    threads,
    threadMemoryMb: 256,
    // Starting a thread takes a third of a second, which calls with images would notice.
    idleTimeoutMs: 600_000,
    waitingMax,
  });
  return {
    sizeBytesMin,
    async judge(task, { workspaceId, signal }) {
      const [only] = task.pieces;
      if (task.pieces.length === 1 && only !== undefined && only.length <= quick.sizeBytesMax) {
        const limits = { ...task.limits, quickWorkMax: quick.workMax };
        const found = checkLargeBody(only, { ...task, limits });
        if (found !== null) return found;
      }
      const pieces = task.pieces.map(alone);
      const moved = pieces.map(({ buffer }) => buffer);
      const found = await lane.run({ ...task, pieces }, { timeoutMs, group: workspaceId ?? '', signal, moved });
      if (found === null) throw unjudged();
      if ('refusal' in found) {
        const { kind, code, message, param } = found.refusal;
        throw new GatewayError(kind, code, message, { param });
      }
      const { buffer, byteOffset, length } = found.bytes;
      return { ...found, bytes: Buffer.from(buffer, byteOffset, length) };
    },
    stats: () => lane.stats(),
    stop: () => lane.stop(),
  };
}

/** A piece whose memory contains nothing else, so that it can be moved: small Buffers of Node share theirs. */
function alone(piece: Buffer): Buffer<ArrayBuffer> {
  const { buffer, length } = piece;
  if (buffer instanceof ArrayBuffer && buffer.byteLength === length) return piece as Buffer<ArrayBuffer>;
  const copy = Buffer.allocUnsafeSlow(length);
  copy.set(piece);
  return copy;
}

const unjudged = (): GatewayError =>
  new GatewayError('unavailable', 'server_overloaded', 'The body could not be checked in time. Try again shortly.', {
    retryAfterMs: 1_000,
  });
