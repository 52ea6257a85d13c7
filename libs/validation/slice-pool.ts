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
   * Checks a slice in a thread; waits for a free one, in turns with other files. Null when the thread died of it or
   * took longer than `timeoutMs` (and was killed). Throws the reason of `signal` when that aborts.
   */
  run(task: SliceTask, timeoutMs: number, signal?: AbortSignal): Promise<SliceResult | null>;
  stop(): Promise<void>;
};

/** `forFile`: the same threads for the slices of one more file; files take turns. */
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
