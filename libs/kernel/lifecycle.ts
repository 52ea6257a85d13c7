import { setTimeout as delay } from 'node:timers/promises';
import { limitHeapGrowth } from './heap-growth.ts';
import type { Logger } from './logging/logger.ts';
import { ConfigurationError } from './read-env.ts';

/**
 * A long-lived part of a process. `stop` is idempotent and can be called before or without `start`, but never while
 * `start` is running. The signal aborts when the process must stop; a long start must then end soon, with or without an
 * error.
 */
export type Part = {
  name: string;
  start?: (signal?: AbortSignal) => Promise<void> | void;
  stop?: () => Promise<void> | void;
};

/** Starts no further part once the signal has aborted. */
async function startInOrder(parts: readonly Part[], signal: AbortSignal): Promise<void> {
  for (const part of parts) {
    if (signal.aborted) return;
    await part.start?.(signal);
  }
}

/**
 * Stops the parts in reverse order. A part that fails to stop is logged, and the others are stopped nevertheless.
 * `onPart` is called with the name of each part before it is stopped.
 * @testOnly
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

/**
 * Ends the process with status 1, without stopping its parts, because its state is wrong and must not be written. The
 * log and the database are crash-safe.
 */
export function exitImmediately(logger: Logger, reason: string): never {
  logger.fatal(reason);
  process.exit(1);
}

/** Without its parent a child has no log and soon no database. Long enough to settle results, short enough to be replaced. */
const orphanDeadlineMs = 5_000;

/** The time that a log reader has to take the last lines. */
const lastLinesMs = 1_000;

/** The message that a process with an IPC channel sends to its parent when all of its parts are started. */
export const startedMessage = 'started';

/**
 * Runs a process until it receives a signal: starts the parts, stops them on SIGTERM or SIGINT within `deadlineMs`, and
 * exits immediately on a second signal. A signal during the start waits for the part that is starting, starts no
 * further ones and stops those that run.
 *
 * A process that was started with an IPC channel (by `npm start`) notifies its parent when it has started, and stops
 * within 5 s when its parent has died. It ignores a second signal, because its parent can kill it.
 *
 * The exit status is 0 after an orderly stop, even during the start. It is 1 when a start fails, when an error was not
 * caught, or when the deadline passed.
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
    // A part must not be stopped while it starts: its start would fail half-way, or continue after its stop.
    await starting.catch((error: unknown) => logger.debug({ err: error }, 'start given up'));
    await stopAll(parts, logger, (part) => {
      current = part;
      logger.debug({ part }, 'stopping part');
    });
    logger.info('stopped');
    // A log reader that hangs must not turn an orderly stop into one that missed its deadline.
    await Promise.race([new Promise((resolve) => logger.flush(resolve)), delay(lastLinesMs)]);
    process.exit(exitCode);
  };
  const stop = (reason: string, withinMs = deadlineMs): void => {
    if (ending) {
      // A service manager signals the parent and its children, and the parent then signals each child again.
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
    // The state in memory is unknown now. The log and the database are crash-safe.
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
      else stop('the parent process has ended', Math.min(deadlineMs, orphanDeadlineMs));
    });
  }
  starting = startInOrder(parts, stopping.signal);
  try {
    await starting;
    if (!ending) process.send?.(startedMessage, undefined, {}, () => {}); // the parent may have died
  } catch (error) {
    if (ending) return;
    reportFailedStart(logger, error);
    await end(1, deadlineMs);
  }
}

/**
 * Reports why a process cannot start: as a fatal line of its log, for a log collector, and a ConfigurationError also as
 * plain text on stderr, for a person at a terminal.
 */
export function reportFailedStart(logger: Logger, error: unknown): void {
  if (!(error instanceof ConfigurationError)) return logger.fatal({ err: error }, 'start failed');
  console.error(error.message);
  // `npm start` shows both streams of its children to the same person.
  if (process.send === undefined) logger.fatal({ problem: error.message }, 'start failed');
}
