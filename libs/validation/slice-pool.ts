import { createThreadLane, type ThreadLane } from '#libs/threads/thread-lane.ts';
import { SchemaNeedsThread } from './lines/check-response-schema.ts';
import type { SliceResult, SliceTask } from './slice-task.ts';

export type SlicePoolOptions = {
  threads: number;
  /** Heap limit of one thread. A line that needs more kills the thread, not the process. */
  threadMemoryMb: number;
  /** A thread ends after this long without work. */
  idleTimeoutMs: number;
  /** Whether short slices are checked on the event loop. Not in a process whose loop serves live calls. */
  usesLoop: boolean;
};

export type SlicePool = {
  /** Checks a short slice on the event loop if the pool uses it, and any other slice as `run` does. */
  check(task: SliceTask, timeoutMs: number, signal?: AbortSignal): Promise<SliceResult | null>;
  /**
   * Checks a slice in a thread. Waits for a free one, taking turns with other files. Returns null when the thread died
   * or was killed after `timeoutMs`. Throws the reason of `signal` when that aborts.
   */
  run(task: SliceTask, timeoutMs: number, signal?: AbortSignal): Promise<SliceResult | null>;
};

/** `forFile`: a pool with the same threads for one more file. Files take turns. */
export type SharedSlicePool = { forFile(): SlicePool; stop(): Promise<void> };

/**
 * The threads, started when first needed. The first slice of each file has a thread that never works on the others, so
 * that a short file, which has only one, does not wait for large ones.
 */
export function createSlicePool(options: SlicePoolOptions): SharedSlicePool {
  const module = new URL('./validate-slice-worker.ts', import.meta.url);
  const createLane = (threads: number, idleTimeoutMs: number): ThreadLane<SliceTask, SliceResult> =>
    createThreadLane({ ...options, module, threads, idleTimeoutMs, isGroupAlone: true });
  // A thread takes 35 MB.
  const firstSlices = createLane(1, Math.min(options.idleTimeoutMs, 500));
  const otherSlices = createLane(options.threads, options.idleTimeoutMs);
  let files = 0;
  return {
    forFile() {
      const group = String((files += 1));
      let lane = firstSlices;
      const run: SlicePool['run'] = (task, timeoutMs, signal) => {
        const result = lane.run(task, { timeoutMs, group, ...(signal ? { signal } : {}) });
        lane = otherSlices;
        return result;
      };
      return {
        run,
        check: async (task, timeoutMs, signal) =>
          (options.usesLoop ? await checkOnLoop(task) : null) ?? (await run(task, timeoutMs, signal)),
      };
    },
    async stop() {
      await Promise.all([firstSlices.stop(), otherSlices.stop()]);
    },
  };
}

// About 20 ms of the loop, for the worst lines that we know. A thread that has to be started takes 0.4 to 0.8 s, which was
// most of the time of a small batch.
const bytesMax = 131_072;
const linesMax = 500;

/**
 * Checks a short slice on the event loop. Returns null for one that has to be checked in a thread.
 * @testOnly
 */
export async function checkOnLoop(task: SliceTask): Promise<SliceResult | null> {
  if (task.bytes.length > bytesMax || hasMoreLines(task.bytes, linesMax)) return null;
  const { default: validateSlice } = await import('./validate-slice-worker.ts');
  try {
    return validateSlice({ ...task, rules: { ...task.rules, onLoop: true } });
  } catch (error) {
    if (error instanceof SchemaNeedsThread) return null;
    throw error;
  }
}

function hasMoreLines(bytes: Uint8Array, max: number): boolean {
  let at = -1;
  for (let line = 1; line <= max; line += 1) {
    at = bytes.indexOf(0x0a, at + 1);
    if (at === -1) return false;
  }
  return at < bytes.length - 1;
}
