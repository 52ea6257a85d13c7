import { announceAccessChange } from '#libs/identity/access-change.ts';
import { createDatabase } from '#libs/database/pool.ts';
import { checkInlineModels, rebuildInlineModels, type CheckReport } from '#libs/event-log/rebuild.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { inlineModels } from '../../platform/models.ts';
import { withMigratedPool } from '../operate/migrated-pool.ts';

export type RebuildOptions = { connectionString: string; check: boolean; onProgress: (events: number) => void };

/**
 * Folds the whole event log and compares the result with the read models (`check`), or replaces their rows with it.
 * Throws ConfigurationError if migrations are pending.
 */
export async function rebuild(options: RebuildOptions, logger: Logger): Promise<CheckReport> {
  const { connectionString, check, onProgress } = options;
  return await withMigratedPool(
    { connectionString, applicationName: 'sluice-rebuild', max: 4 },
    logger,
    async (pool) => {
      const run = check ? checkInlineModels : rebuildInlineModels;
      const report = await run(pool, inlineModels, onProgress);
      // Running processes must read the repaired keys again.
      if (!check && report.difference !== null) {
        await createDatabase(pool)
          .transaction()
          .execute(async (tx) => await announceAccessChange({ tx }));
      }
      return report;
    },
  );
}

/** The result as text, one line each. */
export function describeCheck(report: CheckReport, check: boolean): string[] {
  const rows = Object.entries(report.rows)
    .map(([model, count]) => `${count} ${model}`)
    .join(', ');
  const rate = Math.round((report.events / Math.max(report.durationMs, 1)) * 1_000);
  const lines = [
    `${report.events} events folded in ${(report.durationMs / 1_000).toFixed(1)} s (${rate} per second) into rows: ${rows}`,
  ];
  const { difference } = report;
  if (difference === null) return [...lines, 'equal: the read models match the event log'];
  lines.push(`${check ? 'different' : 'was different, now rebuilt'}: ${difference.model} ${difference.id}`);
  lines.push(`  live:   ${JSON.stringify(difference.live)}`, `  folded: ${JSON.stringify(difference.folded)}`);
  return lines;
}

/** The report as one line of JSON, for scripts. */
export function toJson(report: CheckReport, check: boolean): string {
  const { events, rows, difference, durationMs } = report;
  return JSON.stringify({
    check,
    equal: difference === null,
    events,
    rows,
    difference,
    duration_ms: Math.round(durationMs),
  });
}
