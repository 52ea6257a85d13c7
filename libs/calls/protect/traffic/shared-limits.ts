import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { renewShares, returnShares } from '#libs/limits/call-limit-store.ts';
import type { CallReport } from '#libs/limits/call-limit.ts';
import type { Lanes, SharedLane } from './lanes.ts';
import { SharedWaits } from './shared-waits.ts';

type Deps = { db: Kysely<Database>; lanes: Pick<Lanes, 'share' | 'shared'>; clock: Clock; logger: Logger };

const everyMs = 1_000;
/** The lanes that are renewed in one transaction. */
const lanesMax = 1_000;

/**
 * Shares learned limits and rate-limit waits with other processes. Once a second, it reports the calls of each lane,
 * renews its share of the limit, and exchanges the waits that providers ask for. No call waits for that, except the
 * second background call of a lane that has no share yet.
 */
export function createSharedLimits({ db, lanes, clock, logger }: Deps): BackgroundLoop {
  const holder = newId('process_');
  const waits = new SharedWaits(clock);
  let hasShares = false;

  const renew = async (reported: readonly { lane: SharedLane; report: CallReport }[]): Promise<void> => {
    const reports = reported.map(({ lane, report }) => ({ name: lane.shared, report }));
    const grants = await renewShares(db, holder, reports);
    hasShares = true;
    for (const [index, { lane, report }] of reported.entries()) lane.paced.take(grants[index] ?? null, report);
  };

  const loop = createBackgroundLoop({
    name: 'shared limits',
    periodMs: everyMs,
    logger,
    run: async () => {
      await waits.sync(db, lanes.shared);
      const reported = Array.from(lanes.shared(), (lane) => ({ lane, report: lane.paced.report() })).filter(
        (one): one is { lane: SharedLane; report: CallReport } => one.report !== null,
      );
      for (let start = 0; start < reported.length; start += lanesMax) {
        await renew(reported.slice(start, start + lanesMax));
      }
    },
  });
  lanes.share({
    onUngranted: () => void loop.wake(),
    onWait: (lane) => {
      if (waits.change(lane)) void loop.wake();
    },
    waitUntilMs: (id) => waits.untilMs(id),
  });
  return {
    ...loop,
    async stop() {
      await loop.stop();
      if (!hasShares || loop.error() !== undefined) return;
      await returnShares(db, holder).catch((error: unknown) =>
        logger.warn({ err: error }, 'others can use the calls of this process when its share has expired'),
      );
    },
  };
}
