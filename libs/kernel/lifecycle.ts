import { limitHeapGrowth } from './heap-growth.ts';
import type { Logger } from './logger.ts';
import { ConfigurationError } from './read-env.ts';

/**
 * A long-lived part of a process. `stop` is idempotent and may be called before or without `start`, but never while
 * `start` is under way. The signal aborts when the process is told to stop: a start that may take long ends soon then,
 * with or without an error.
 */
export type Part = {
  name: string;
  start?: (signal?: AbortSignal) => Promise<void> | void;
  stop?: () => Promise<void> | void;
};

/** Starts the parts in order; when one fails, stops those that already run and rethrows. */
export async function startAll(parts: readonly Part[], logger: Logger): Promise<void> {
  try {
    await startInOrder(parts, new AbortController().signal);
  } catch (error) {
    await stopAll(parts, logger);
    throw error;
  }
}

/** Begins no further part once the signal has aborted. */
async function startInOrder(parts: readonly Part[], signal: AbortSignal): Promise<void> {
  for (const part of parts) {
    if (signal.aborted) return;
    await part.start?.(signal);
  }
}

/**
 * Stops the parts in reverse order; a part that fails to stop is logged and does not keep the others running. `onPart`
 * is told the name of each before it is stopped.
 */
export async function stopAll(
  parts: readonly Part[],
  logger: Logger,
  onPart: (name: string) => void = () => {},
): Promise<void> {
  for (const part of parts.toReversed()) {
    onPart(part.name);
    try {
      await part.stop?.();
    } catch (error) {
      logger.error({ err: error, part: part.name }, 'part failed to stop');
    }
  }
}

/** Without its parent a child has no log and soon no database: long enough to settle, short enough to be replaced. */
const orphanDeadlineMs = 5_000;

/** What a process with an IPC channel tells its parent when all of its parts are started. */
export const startedMessage = 'started';

/**
 * Runs a process until it is told to stop: starts the parts, stops them on SIGTERM or SIGINT within `deadlineMs`, exits
 * at once on a second signal. A signal during the start lets the part that is being started come to an end, starts no
 * further one, and stops those that run.
 *
 * A process that was started with an IPC channel (by `npm start`) tells its parent when it has started, stops within 5 s
 * when its parent is gone, and leaves it to its parent to end it at once.
 *
 * The exit status is 0 after an orderly stop, also of a start that was not complete. It is 1 when a start fails (a
 * ConfigurationError is printed as it is, on stderr), an error was not caught, or the deadline passed.
 */
export async function runProcess(
  parts: readonly Part[],
  options: { logger: Logger; deadlineMs: number },
): Promise<void> {
  const { logger, deadlineMs } = options;
  limitHeapGrowth();
  const stopping = new AbortController();
  let starting: Promise<void> = Promise.resolve();
  let ending = false;
  const end = async (exitCode: number, withinMs: number): Promise<void> => {
    ending = true;
    let current = 'start';
    setTimeout(() => {
      logger.error({ deadline_ms: withinMs, part: current }, 'stop deadline passed');
      process.exit(1);
    }, withinMs).unref();
    // A part that is stopped while it starts is left half-way: its start fails, or goes on behind its own stop.
    await starting.catch((error: unknown) => logger.debug({ err: error }, 'start given up'));
    await stopAll(parts, logger, (part) => {
      current = part;
      logger.debug({ part }, 'stopping part');
    });
    logger.info('stopped');
    process.exit(exitCode);
  };
  const stop = (reason: string, withinMs = deadlineMs): void => {
    if (ending) {
      // A service manager signals the parent and its children, and then the parent each child once more.
      if (process.connected) return;
      process.exit(1);
    }
    logger.info({ reason }, 'stopping');
    stopping.abort();
    void end(0, withinMs);
  };
  process.on('SIGTERM', () => stop('SIGTERM'));
  process.on('SIGINT', () => stop('SIGINT'));
  process.on('uncaughtException', (error) => {
    // The state of the process is unknown: the log and the database are crash-safe, memory is not.
    logger.fatal({ err: error }, 'uncaught exception');
    process.exit(1);
  });
  process.on('unhandledRejection', (error) => {
    logger.fatal({ err: error }, 'unhandled rejection');
    process.exit(1);
  });
  if (process.send !== undefined) {
    if (!process.connected) process.exit(1); // the parent died before anything was started
    process.once('disconnect', () => {
      if (ending) setTimeout(() => process.exit(1), orphanDeadlineMs).unref();
      else stop('the parent process is gone', Math.min(deadlineMs, orphanDeadlineMs));
    });
  }
  starting = startInOrder(parts, stopping.signal);
  try {
    await starting;
    if (!ending) process.send?.(startedMessage, undefined, {}, () => {}); // a parent that is gone needs no news
  } catch (error) {
    if (ending) return;
    if (error instanceof ConfigurationError) console.error(error.message);
    else logger.fatal({ err: error }, 'start failed');
    await end(1, deadlineMs);
  }
}
