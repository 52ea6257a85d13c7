import { createThreadLane } from '#libs/threads/thread-lane.ts';
import type { SliceResult, SliceTask } from './slice-task.ts';

export type SlicePoolOptions = {
  threads: number;
  /** Heap limit of one thread. A line that needs more kills the thread, not the process. */
  threadMemoryMb: number;
  /** A thread ends after this long without work. */
  idleTimeoutMs: number;
};

export type SlicePool = {
  /**
   * Checks a slice in a thread. Waits for a free one, taking turns with other files. Returns null when the thread died
   * or was killed after `timeoutMs`. Throws the reason of `signal` when that aborts.
   */
  run(task: SliceTask, timeoutMs: number, signal?: AbortSignal): Promise<SliceResult | null>;
  stop(): Promise<void>;
};

/** `forFile`: a pool with the same threads for one more file. Files take turns. */
export type SharedSlicePool = SlicePool & { forFile(): SlicePool };

/** The threads, started when first needed. */
export function createSlicePool(options: SlicePoolOptions): SharedSlicePool {
  const module = new URL('./validate-slice-worker.ts', import.meta.url);
  const lane = createThreadLane<SliceTask, SliceResult>({ ...options, module, isGroupAlone: true });
  let files = 0;
  const poolOf = (group: string): SlicePool => ({
    run: (task, timeoutMs, signal) => lane.run(task, { timeoutMs, group, ...(signal ? { signal } : {}) }),
    stop: () => lane.stop(),
  });
  return { ...poolOf(''), forFile: () => poolOf(String((files += 1))) };
}
