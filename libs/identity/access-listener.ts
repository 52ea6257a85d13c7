import pg from 'pg';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { accessChannel } from './access-change.ts';

type Options = {
  /** A direct connection: a transaction pooler such as PgBouncer does not support LISTEN. */
  connectionString: string;
  /**
   * Called for each notification, and once after every connect, because notifications during the interruption were
   * lost.
   */
  onChange: () => void;
  logger: Logger;
  /** The time between two attempts to connect. Default 1 s; polling covers the gap. */
  retryMs?: number;
};

/**
 * Listens on a separate connection for changes of keys. It only makes them arrive sooner than the next poll: it starts
 * in the background, connects again after every loss, and its failures are logged and otherwise harmless.
 */
export function createAccessListener({ connectionString, onChange, logger, retryMs = 1_000 }: Options): Part {
  const stopping = new AbortController();
  let running: Promise<void> | undefined;

  async function listen(): Promise<void> {
    const attempt = new AbortController();
    const client = new pg.Client({
      connectionString,
      application_name: 'sluice-access-listener',
      connectionTimeoutMillis: 5_000,
      keepAlive: true,
      keepAliveInitialDelayMillis: 10_000,
    });
    const ended = Promise.withResolvers<void>();
    client.on('error', (error) => {
      logger.warn({ err: error }, 'access listener lost its connection');
      ended.resolve();
    });
    client.on('end', ended.resolve);
    client.on('notification', onChange);
    stopping.signal.addEventListener('abort', () => ended.resolve(), { signal: attempt.signal });
    try {
      await client.connect();
      await client.query(`listen ${accessChannel}`);
      onChange();
      if (!stopping.signal.aborted) await ended.promise;
    } finally {
      attempt.abort();
      await client.end().catch(() => {});
    }
  }

  async function listenUntilStopped(): Promise<void> {
    while (!stopping.signal.aborted) {
      try {
        await listen();
      } catch (error) {
        logger.warn({ err: error }, 'access listener cannot connect; polling continues');
      }
      await sleep(retryMs, stopping.signal);
    }
  }

  return {
    name: 'access listener',
    start() {
      running ??= listenUntilStopped();
    },
    async stop() {
      stopping.abort();
      await running;
    },
  };
}
