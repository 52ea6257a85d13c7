import cluster from 'node:cluster';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import {
  supervise,
  type ChildLog,
  type Supervised,
  type SuperviseOptions,
} from '../../platform/processes/supervise.ts';
import { openChannel, type Answers, type Ask } from './channel.ts';

/** One of several API processes, as their parent sees it. */
export type ApiChild = Supervised & {
  /** From 1. It stays the same when the process is replaced. */
  readonly number: number;
  /** Asks the current process. Resolves with undefined if it has not started, or does not answer in time. */
  ask: (question: string) => Promise<unknown>;
  /** Kills the process if its event loop hangs, so that it is replaced. Call it every ten seconds. */
  checkAlive: () => Promise<void>;
};

type Options = Pick<SuperviseOptions, 'stopDeadlineMs' | 'onStarted' | 'onGiveUp' | 'mayGiveUp' | 'isStopping'> & {
  number: number;
  environment: () => Record<string, string>;
  /** What the process can ask its parent. */
  answers: Answers;
  onExit: () => void;
  logger: Logger;
};

/** Longer than a check of readiness takes, and than metrics from the database. */
const answerWaitMs = 3_000;
/** In a row, without an answer. */
const missesMax = 3;

/** Prepares an API process, which runs the same program as this one and writes to the same streams. */
export function createApiChild({ number, environment, answers, onExit, logger, ...supervision }: Options): ApiChild {
  let askCurrent: Ask = async () => undefined;
  let misses = 0;
  const supervised = supervise({
    ...supervision,
    name: `API process ${number}`,
    spawn() {
      cluster.setupPrimary({ serialization: 'advanced', stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
      const worker = cluster.fork(environment());
      worker.on('error', () => {}); // `supervise` reports it.
      worker.once('exit', onExit);
      askCurrent = openChannel(worker, answers);
      misses = 0;
      return worker.process;
    },
    log: createOutput(logger),
    onProblem: (text) => logger.error(text),
    // The program that started this one starts it again.
    startsMax: 1,
  });
  const ask = async (question: string): Promise<unknown> =>
    supervised.hasStarted() ? await askCurrent(question, answerWaitMs) : undefined;
  return {
    ...supervised,
    number,
    ask,
    async checkAlive() {
      const pid = supervised.pid();
      if (pid === undefined || !supervised.hasStarted()) return;
      const isAlive = (await ask('alive')) === true;
      if (supervised.pid() !== pid) return;
      misses = isAlive ? 0 : misses + 1;
      if (misses < missesMax) return;
      logger.error({ child: pid }, `the ${supervised.name} does not answer and is killed`);
      process.kill(pid, 'SIGKILL');
    },
  };
}

const createOutput = (logger: Logger): ChildLog => ({
  attach: () => {},
  line: (text) => logger.error(text),
  lastLines: () => [],
});
