import { availableParallelism } from 'node:os';
import { Piscina } from 'piscina';
import type { SliceResult, SliceTask } from './slice-task.ts';

export type SlicePoolOptions = {
  threads: number;
  /** Heap of one thread; a line that needs more kills the thread, not the process. */
  threadMemoryMb: number;
  /** After this long without work a thread ends. */
  idleTimeoutMs: number;
};

// Lines are checked one after the other and leave nothing behind: more room for them only takes longer to go through.
const youngMemoryMb = 16;

/** As many as cores less one, so that the event loop of the process keeps a core. */
export const threadsByDefault = (): number => Math.max(1, availableParallelism() - 1);

export type SlicePool = {
  /**
   * Checks a slice in a thread; waits for a free one, first come, first served. Null when the thread died of it or
   * took longer than `timeoutMs` (and was killed). Throws the reason of `signal` when that aborts.
   */
  run(task: SliceTask, timeoutMs: number, signal?: AbortSignal): Promise<SliceResult | null>;
  stop(): Promise<void>;
};

/** The threads, started when first needed. */
export function createSlicePool({ threads, threadMemoryMb, idleTimeoutMs }: SlicePoolOptions): SlicePool {
  let pool: Piscina<SliceTask, SliceResult> | undefined;
  let stopped = false;
  let free = threads;
  const waiting: (() => void)[] = [];

  const start = (): Piscina<SliceTask, SliceResult> => {
    const started = new Piscina<SliceTask, SliceResult>({
      filename: new URL('./validate-slice-worker.ts', import.meta.url).href,
      minThreads: 0,
      maxThreads: threads,
      idleTimeout: idleTimeoutMs,
      concurrentTasksPerWorker: 1,
      recordTiming: false,
      resourceLimits: {
        maxOldGenerationSizeMb: threadMemoryMb,
        maxYoungGenerationSizeMb: youngMemoryMb,
        stackSizeMb: 4,
      },
      // A thread needs no secrets of the environment and no flags (an inspector, a memory limit) of the process.
      env: {},
      execArgv: [],
    });
    // A thread that dies without a task has nobody else to tell; the next task starts another.
    started.on('error', () => undefined);
    return started;
  };

  // A permit per thread: a task handed to piscina runs at once, so that its time is its own and not the queue's.
  const acquire = async (): Promise<void> => {
    if (free > 0) free -= 1;
    else await new Promise<void>((resolve) => waiting.push(resolve));
  };
  const release = (): void => {
    const next = waiting.shift();
    if (next === undefined) free += 1;
    else next();
  };

  return {
    async run(task, timeoutMs, signal) {
      await acquire();
      const deadline = new AbortController();
      const timer = setTimeout(() => deadline.abort(), timeoutMs);
      try {
        signal?.throwIfAborted();
        if (stopped) throw new Error('the validation threads are stopped');
        pool ??= start();
        const abort = signal === undefined ? deadline.signal : AbortSignal.any([deadline.signal, signal]);
        return await pool.run(task, { signal: abort });
      } catch (error) {
        signal?.throwIfAborted();
        if (stopped) throw error;
        return null;
      } finally {
        clearTimeout(timer);
        release();
      }
    },
    async stop() {
      stopped = true;
      await pool?.destroy();
      pool = undefined;
    },
  };
}
