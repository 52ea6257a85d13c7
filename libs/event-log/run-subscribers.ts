import type { Kysely } from 'kysely';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import {
  applyNextPage,
  ensureCheckpoint,
  hasNextEvent,
  pageEventsMax,
  recordFailure,
  type Subscriber,
} from './subscriber.ts';
import type { Upcasts } from './upcast.ts';

export type SubscriberRunner = Part & {
  /** Looks for new events now instead of at the next poll. Called for each notification. */
  wake(): void;
};

type Deps = {
  db: Kysely<Database>;
  subscribers: readonly Subscriber[];
  upcasts: Upcasts;
  logger: Logger;
  /** The time between two polls, and so between two pages that are not full. Default 1 s. */
  pollMs?: number;
};

/**
 * Runs every subscriber in a separate loop. All worker processes do this. Each page is applied by the process that gets
 * the lease, and if that process is killed, another one continues from the checkpoint. An event that cannot be applied
 * is retried with growing delays, and blocks only its own subscriber.
 */
export function createSubscriberRunner({ db, subscribers, upcasts, logger, pollMs = 1_000 }: Deps): SubscriberRunner {
  const createLoop = (subscriber: Subscriber): BackgroundLoop => {
    const { name } = subscriber;
    let limit = pageEventsMax;
    let hasCheckpoint = false;
    /** Returns whether a full page was applied, so that more events could be waiting. */
    const step = async (): Promise<boolean> => {
      if (!hasCheckpoint) await ensureCheckpoint(db, subscriber);
      hasCheckpoint = true;
      if (!(await hasNextEvent(db, name))) return false;
      try {
        const { events, isFull } = await applyNextPage(db, subscriber, upcasts, limit);
        if (events > 0) limit = Math.min(limit * 2, pageEventsMax);
        return isFull;
      } catch (error) {
        if (isTransient(error)) throw error;
        // The pages become smaller until the failing event is alone in one, so that the events before it are applied.
        const isAlone = limit === 1;
        limit = Math.max(1, Math.floor(limit / 8));
        if (!isAlone) return true;
        const failures = await recordFailure(db, name, error instanceof Error ? error.message : String(error));
        logger.error({ err: error, subscriber: name, failures }, 'a subscriber cannot apply an event');
        return false;
      }
    };
    return createBackgroundLoop({
      name: `subscriber ${name}`,
      periodMs: pollMs,
      async run(signal) {
        while (!signal.aborted && (await step()));
      },
      logger,
    });
  };
  const loops = subscribers.map(createLoop);

  return {
    name: 'event log subscribers',
    start() {
      for (const loop of loops) loop.start();
    },
    async stop() {
      await Promise.all(loops.map((loop) => loop.stop()));
    },
    wake() {
      for (const loop of loops) void loop.wake();
    },
  };
}
