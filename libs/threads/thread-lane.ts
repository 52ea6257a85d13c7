import { availableParallelism } from 'node:os';
import { Piscina } from 'piscina';
import { GatewayError } from '#libs/kernel/errors.ts';

export type ThreadLaneOptions = {
  /** The module whose default export does the work. */
  module: URL;
  threads: number;
  /**
   * Heap of one thread. V8 needs 256 MB to start one safely, and Node may end the whole process when it is full: what
   * bounds the work is its size and its time.
   */
  threadMemoryMb: number;
  /** After this long without work a thread ends. */
  idleTimeoutMs: number;
  /** Tasks that wait, of one group and of all. Absent: as many as come, for callers that bound themselves. */
  waitingMax?: { ofGroup: number; ofAll: number };
  /** Whether one group may have all threads. Otherwise one of several threads is left to the others. */
  isGroupAlone?: boolean;
};

export type ThreadTask = {
  /** Of the work itself: the wait for a thread does not count. */
  timeoutMs: number;
  /** Whose task it is: those of different groups take turns. */
  group: string;
  signal?: AbortSignal;
  /** Memory of the task that moves into the thread instead of being copied; here it is empty then. */
  moved?: readonly ArrayBuffer[];
};

export type ThreadLane<Task, Result> = {
  /**
   * Does a task in a thread, when one is free. null when the work threw, or the thread died of it, or took longer than
   * `timeoutMs` and was killed; other tasks notice nothing of that. Throws the reason of `signal` when that aborts, and
   * `server_overloaded` (unavailable, to be tried again) when too many tasks wait already.
   */
  run(task: Task, options: ThreadTask): Promise<Result | null>;
  /** Tasks that were begun since the start, and those that run or wait now. */
  stats(): { begun: number; running: number; waiting: number };
  stop(): Promise<void>;
};

// Tasks are short and leave nothing behind: more room for young objects only takes longer to go through.
const youngMemoryMb = 16;

/** As many as cores less one, so that the event loop of the process keeps a core. */
export const threadsByDefault = (): number => Math.max(1, availableParallelism() - 1);

type Group = { running: number; waiting: (() => void)[] };

/** Threads for one kind of work, started when first needed. Each kind has a lane of its own, so that none starves another. */
export function createThreadLane<Task, Result>(options: ThreadLaneOptions): ThreadLane<Task, Result> {
  const { threads, waitingMax } = options;
  const runningOfGroupMax = options.isGroupAlone === true ? threads : Math.max(1, threads - 1);
  // In the order of their turns. A group is here while one of its tasks runs or waits.
  const groups = new Map<string, Group>();
  let pool: Piscina<Task, Result> | undefined;
  let stopped = false;
  let free = threads;
  let waiting = 0;
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
      // A thread needs no secrets of the environment and no flags (an inspector, a memory limit) of the process.
      env: {},
      execArgv: [],
    });
    // A thread that dies without a task has nobody else to tell; the next task starts another.
    started.on('error', () => undefined);
    return started;
  };

  const begin = (group: Group): void => {
    group.running += 1;
    free -= 1;
    begun += 1;
  };

  /** A thread per task: one that is handed to piscina runs at once, so that its time is its own and not the queue's. */
  const acquire = async (name: string, signal: AbortSignal | undefined): Promise<Group> => {
    const group = groups.get(name) ?? { running: 0, waiting: [] };
    if (free > 0 && group.running < runningOfGroupMax) {
      groups.set(name, group);
      begin(group);
      return group;
    }
    if (waitingMax && (group.waiting.length >= waitingMax.ofGroup || waiting >= waitingMax.ofAll)) throw overloaded();
    groups.set(name, group);
    const turn = Promise.withResolvers<void>();
    group.waiting.push(turn.resolve);
    waiting += 1;
    const leave = (): void => {
      const place = group.waiting.indexOf(turn.resolve);
      if (place === -1) return;
      group.waiting.splice(place, 1);
      waiting -= 1;
      forgetIdle(name, group);
      turn.reject(signal?.reason);
    };
    signal?.addEventListener('abort', leave, { once: true });
    try {
      await turn.promise;
    } finally {
      signal?.removeEventListener('abort', leave);
    }
    return group;
  };

  const forgetIdle = (name: string, group: Group): void => {
    if (group.running === 0 && group.waiting.length === 0) groups.delete(name);
  };

  const release = (name: string, group: Group): void => {
    group.running -= 1;
    free += 1;
    forgetIdle(name, group);
    for (const [nextName, next] of groups) {
      if (next.waiting.length === 0 || next.running >= runningOfGroupMax) continue;
      // It has had its turn: to the end.
      groups.delete(nextName);
      groups.set(nextName, next);
      waiting -= 1;
      begin(next);
      next.waiting.shift()?.();
      return;
    }
  };

  return {
    async run(task, { timeoutMs, group: name, signal, moved = [] }) {
      signal?.throwIfAborted();
      const group = await acquire(name, signal);
      const deadline = new AbortController();
      const timer = setTimeout(() => deadline.abort(), timeoutMs);
      try {
        signal?.throwIfAborted();
        if (stopped) throw new Error('the threads are stopped');
        pool ??= start();
        const abort = signal === undefined ? deadline.signal : AbortSignal.any([deadline.signal, signal]);
        return await pool.run(task, { signal: abort, transferList: [...moved] });
      } catch (error) {
        signal?.throwIfAborted();
        if (stopped) throw error;
        return null;
      } finally {
        clearTimeout(timer);
        release(name, group);
      }
    },
    stats: () => ({ begun, running: threads - free, waiting }),
    async stop() {
      stopped = true;
      await pool?.destroy();
      pool = undefined;
    },
  };
}

function overloaded(): GatewayError {
  const message = 'Too many requests of this workspace wait to be checked. Try again shortly.';
  return new GatewayError('unavailable', 'server_overloaded', message, { retryAfterMs: 1_000 });
}
