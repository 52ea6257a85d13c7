import { getCompileCacheDir } from 'node:module';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { Piscina } from 'piscina';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createFairPool } from '#libs/kernel/sharing/fair-pool.ts';

export type ThreadLaneOptions = {
  /** The module whose default export runs the tasks. */
  module: URL;
  threads: number;
  /**
   * The heap limit of one thread. V8 needs 256 MB to start one safely. Node sometimes ends the whole process when the
   * heap is full, so limit the size and the time of tasks instead.
   */
  threadMemoryMb: number;
  /** A thread ends after this long without work. */
  idleTimeoutMs: number;
  /** The maximum of waiting tasks, of one group and of all. Absent: no limit, for callers that limit themselves. */
  waitingMax?: { ofGroup: number; ofAll: number };
  /** Whether one group can use all threads. By default one thread (of several) is left to other groups. */
  isGroupAlone?: boolean;
};

export type ThreadTask = {
  /** Time for the work itself, without the wait for a thread. */
  timeoutMs: number;
  /** The group of the task. Groups take turns. */
  group: string;
  signal?: AbortSignal;
  /** Buffers of the task that are moved to the thread instead of copied. Afterwards they are empty here. */
  moved?: readonly ArrayBuffer[];
};

export type ThreadLane<Task, Result> = {
  /**
   * Runs a task in a thread as soon as one is free. Returns null when the work threw, killed its thread, or took longer than
   * `timeoutMs` and was killed; other tasks are not affected. Throws the reason of `signal` when that aborts, and GatewayError
   * unavailable / `server_overloaded` when too many tasks are waiting.
   */
  run(task: Task, options: ThreadTask): Promise<Result | null>;
  /** The number of tasks begun since the start, and of those running and waiting now. */
  stats(): { begun: number; running: number; waiting: number };
  stop(): Promise<void>;
};

// Tasks are short and leave no objects behind, so a larger young generation would only take longer to collect.
const youngMemoryMb = 16;

/** One less than the number of cores, so that the event loop of the process keeps a core. */
export const threadsByDefault = (): number => Math.max(1, availableParallelism() - 1);

/** Threads for one kind of work, started when first needed. Each kind has its own threads, so that none starves another. */
export function createThreadLane<Task, Result>(options: ThreadLaneOptions): ThreadLane<Task, Result> {
  const { threads, waitingMax } = options;
  const runningOfGroupMax = options.isGroupAlone === true ? threads : Math.max(1, threads - 1);
  // A task waits here for a free thread before it is given to piscina, so that its timeout does not include the wait.
  const slots = createFairPool({
    units: threads,
    mayTake: (running) => running < runningOfGroupMax,
    waitingMax: waitingMax && { ...waitingMax, refusal: overloaded },
  });
  let pool: Piscina<Task, Result> | undefined;
  let stopped = false;
  let begun = 0;

  const start = (): Piscina<Task, Result> => {
    const started = new Piscina<Task, Result>({
      filename: options.module.href,
      minThreads: 0,
      maxThreads: threads,
      idleTimeout: options.idleTimeoutMs,
      concurrentTasksPerWorker: 1,
      recordTiming: false,
      resourceLimits: {
        maxOldGenerationSizeMb: options.threadMemoryMb,
        maxYoungGenerationSizeMb: youngMemoryMb,
        stackSizeMb: 4,
      },
      // Threads do not need the secrets in the environment or the flags of the process (an inspector, a memory limit).
      // What they do need is the cache of compiled modules. Without it a thread strips the types of its modules with Node's
      // WebAssembly, which takes twice the time to start, and V8 once crashed the process while threads did that together.
      env: compileCache(),
      execArgv: [],
    });
    // Emitted when a thread dies without a task. The next task starts another one.
    started.on('error', () => undefined);
    return started;
  };

  return {
    async run(task, { timeoutMs, group, signal, moved = [] }) {
      await slots.take(group, signal);
      begun += 1;
      const deadline = new AbortController();
      const timer = setTimeout(() => deadline.abort(), timeoutMs);
      try {
        signal?.throwIfAborted();
        if (stopped) throw new Error('the threads are stopped');
        pool ??= start();
        const abort = signal === undefined ? deadline.signal : AbortSignal.any([deadline.signal, signal]);
        // With the types of Node 26, piscina 5.3.2 infers the wrong type for this list.
        const transferList = [...moved] as NonNullable<Parameters<typeof pool.run>[1]>['transferList'];
        return await pool.run(task, { signal: abort, transferList });
      } catch (error) {
        signal?.throwIfAborted();
        if (stopped) throw error;
        return null;
      } finally {
        clearTimeout(timer);
        slots.give(group);
      }
    },
    stats: () => ({ begun, running: slots.held(), waiting: slots.waiting() }),
    async stop() {
      stopped = true;
      await pool?.destroy();
      pool = undefined;
    },
  };
}

function compileCache(): Record<string, string> {
  const folder = getCompileCacheDir(); // of this release and user, in the folder that Node was given
  return folder === undefined ? {} : { NODE_COMPILE_CACHE: path.dirname(folder) };
}

function overloaded(): GatewayError {
  const message = 'Too many requests of this workspace are waiting to be checked. Try again shortly.';
  return new GatewayError('unavailable', 'server_overloaded', message, { retryAfterMs: 1_000 });
}
