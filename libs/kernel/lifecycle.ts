import { limitHeapGrowth } from './heap-growth.ts';
import type { Logger } from './logger.ts';

/** A long-lived part of a process. `stop` is idempotent and may be called before or without `start`. */
export type Part = { name: string; start?: () => Promise<void> | void; stop?: () => Promise<void> | void };

/** Starts the parts in order; when one fails, stops those that already run and rethrows. */
export async function startAll(parts: readonly Part[], logger: Logger): Promise<void> {
  for (const [index, part] of parts.entries()) {
    try {
      await part.start?.();
    } catch (error) {
      await stopAll(parts.slice(0, index + 1), logger);
      throw error;
    }
  }
}

/** Stops the parts in reverse order; a part that fails to stop is logged and does not keep the others running. */
export async function stopAll(parts: readonly Part[], logger: Logger): Promise<void> {
  for (const part of parts.toReversed()) {
    try {
      await part.stop?.();
    } catch (error) {
      logger.error({ err: error, part: part.name }, 'part failed to stop');
    }
  }
}

/** Without its parent a child has no log and soon no database: long enough to settle, short enough to be replaced. */
const orphanDeadlineMs = 5_000;

/**
 * Runs a process until it is told to stop: starts the parts, stops them on SIGTERM or SIGINT within `deadlineMs`,
 * exits at once on a second signal. A start that fails, or an error that nobody caught, exits 1.
 * A process that was started with an IPC channel (by `npm start`) also stops, within 5 s, when its parent is gone.
 * The exit status is 0 after an orderly stop and 1 when the deadline passed.
 */
export async function runProcess(
  parts: readonly Part[],
  options: { logger: Logger; deadlineMs: number },
): Promise<void> {
  const { logger, deadlineMs } = options;
  limitHeapGrowth();
  let stopping = false;
  const stop = async (reason: string, withinMs = deadlineMs): Promise<void> => {
    if (stopping) process.exit(1);
    stopping = true;
    logger.info({ reason }, 'stopping');
    setTimeout(() => {
      logger.error({ deadline_ms: withinMs }, 'stop deadline passed');
      process.exit(1);
    }, withinMs).unref();
    await stopAll(parts, logger);
    logger.info('stopped');
    process.exit(0);
  };
  process.on('SIGTERM', () => void stop('SIGTERM'));
  process.on('SIGINT', () => void stop('SIGINT'));
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
      if (stopping) setTimeout(() => process.exit(1), orphanDeadlineMs).unref();
      else void stop('the parent process is gone', Math.min(deadlineMs, orphanDeadlineMs));
    });
  }
  try {
    await startAll(parts, logger);
  } catch (error) {
    logger.fatal({ err: error }, 'start failed');
    process.exit(1);
  }
}
