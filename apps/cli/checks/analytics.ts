import { checkRollups, rebuildRollups, type RollupCheck } from '#libs/analytics/rollups/check-rollups.ts';
import { createDatabase } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { readEnv } from '#libs/kernel/read-env.ts';
import { CliConfig } from '../operate/config.ts';
import { withMigratedPool } from '../operate/migrated-pool.ts';

/** Compares the rollups of analytics with the request log. Throws ConfigurationError if migrations are pending. */
export async function checkAnalytics(
  { connectionString, onDay }: { connectionString: string; onDay: (day: string) => void },
  logger: Logger,
): Promise<RollupCheck> {
  const options = { connectionString, applicationName: 'sluice-check-analytics' };
  return await withMigratedPool(options, logger, (pool) => checkRollups(createDatabase(pool), onDay));
}

/** Rolls up the whole request log again. Returns the number of minutes. Throws ConfigurationError if migrations are pending. */
export async function rebuildAnalytics(
  options: { connectionString: string; onProgress: (minutes: number) => void },
  logger: Logger,
): Promise<number> {
  const { connectionString, onProgress } = options;
  const logRetentionMs = readEnv(CliConfig).SLUICE_REQUEST_LOG_RETENTION;
  return await withMigratedPool({ connectionString, applicationName: 'sluice-rebuild-analytics' }, logger, (pool) =>
    rebuildRollups(createDatabase(pool), { nowMs: Date.now(), logRetentionMs, onProgress }),
  );
}

/** The result as text, one line each. */
export function describeRollupCheck({ days, different, waiting }: RollupCheck): string[] {
  const rows = days.reduce((sum, day) => sum + day.rows, 0);
  return [
    ...days
      .filter((day) => day.different > 0)
      .map((day) => `${day.day}: ${day.different} rows differ from the request log`),
    `compared ${rows} rows of rollups with the request log of ${days.length} days`,
    ...(waiting === 0 ? [] : [`left out what ${waiting} changes are about, which are still to be rolled up`]),
    different === 0 ? 'equal' : 'different: run sluice analytics rebuild',
  ];
}
