import { createThreadLane } from '#libs/threads/thread-lane.ts';
import type { SliceResult, SliceTask } from './slice-task.ts';

export type SlicePoolOptions = {
  threads: number;
  /** Heap of one thread; a line that needs more kills the thread, not the process. */
  threadMemoryMb: number;
  /** After this long without work a thread ends. */
  idleTimeoutMs: number;
};

export type SlicePool = {
  /**
   * Checks a slice in a thread; waits for a free one, first come, first served. Null when the thread died of it or
   * took longer than `timeoutMs` (and was killed). Throws the reason of `signal` when that aborts.
   */
  run(task: SliceTask, timeoutMs: number, signal?: AbortSignal): Promise<SliceResult | null>;
  stop(): Promise<void>;
};

/** The threads, started when first needed. */
export function createSlicePool(options: SlicePoolOptions): SlicePool {
  const module = new URL('./validate-slice-worker.ts', import.meta.url);
  // All slices are of one group: how files share the threads is decided before.
  const lane = createThreadLane<SliceTask, SliceResult>({ ...options, module, isGroupAlone: true });
  return {
    run: (task, timeoutMs, signal) => lane.run(task, { timeoutMs, group: '', ...(signal ? { signal } : {}) }),
    stop: () => lane.stop(),
  };
}
