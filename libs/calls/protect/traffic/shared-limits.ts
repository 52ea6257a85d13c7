import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { renewShares, returnShares } from '#libs/limits/call-limit-store.ts';
import type { CallReport } from '#libs/limits/call-limit.ts';
import type { Lanes, SharedLane } from './lanes.ts';

type Deps = { db: Kysely<Database>; lanes: Pick<Lanes, 'share' | 'shared'>; logger: Logger };

const everyMs = 1_000;
/** The lanes that are renewed in one transaction. */
const lanesMax = 1_000;

type Reported = SharedLane & { report: CallReport };

/**
 * Shares the learned limits with other processes: once a second, reports the calls of each lane and renews its share of
 * the limit. No call waits for that, except the second background call of a lane that has no share yet.
 */
export function createSharedLimits({ db, lanes, logger }: Deps): BackgroundLoop {
  const holder = newId('process_');

  const renew = async (reported: readonly Reported[]): Promise<void> => {
    const grants = await renewShares(db, holder, reported);
    for (const [index, { paced, report }] of reported.entries()) paced.take(grants[index] ?? null, report);
  };

  const loop = createBackgroundLoop({
    name: 'shared limits',
    periodMs: everyMs,
    logger,
    run: async () => {
      const reported: Reported[] = [];
      for (const lane of lanes.shared()) {
        const report = lane.paced.report();
        if (report !== null) reported.push({ ...lane, report });
      }
      if (reported.length === 0) return 'idle';
      for (let start = 0; start < reported.length; start += lanesMax) {
        await renew(reported.slice(start, start + lanesMax));
      }
      return undefined;
    },
  });
  lanes.share(() => void loop.wake());
  return {
    ...loop,
    async stop() {
      await loop.stop();
      await returnShares(db, holder).catch((error: unknown) =>
        logger.warn({ err: error }, 'others can use the calls of this process when its share has expired'),
      );
    },
  };
}
