import { announceAccessChange } from '#libs/access/access-change.ts';
import { createDatabase } from '#libs/database/pool.ts';
import { checkInlineModels, rebuildInlineModels, type CheckReport } from '#libs/event-log/rebuild.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { inlineModels } from '../platform/models.ts';
import { withMigratedPool } from './migrated-pool.ts';

export type RebuildOptions = { connectionString: string; check: boolean; onProgress: (events: number) => void };

/**
 * Folds the whole log into fresh tables and compares them with the live ones, or replaces the live ones by them.
 * Throws ConfigurationError when the database lacks migrations: its tables are not the ones that are folded into.
 */
export async function rebuild(options: RebuildOptions, logger: Logger): Promise<CheckReport> {
  const { connectionString, check, onProgress } = options;
  return await withMigratedPool({ connectionString, applicationName: 'sluice-rebuild' }, logger, async (pool) => {
    const run = check ? checkInlineModels : rebuildInlineModels;
    const report = await run(pool, inlineModels, onProgress);
    // A repaired key must reach the processes that run now.
    if (!check && report.difference !== null) {
      await createDatabase(pool)
        .transaction()
        .execute(async (tx) => await announceAccessChange({ tx }));
    }
    return report;
  });
}

/** The verdict of a check in words, one line each. */
export function describeCheck(report: CheckReport, check: boolean): string[] {
  const rows = Object.entries(report.rows)
    .map(([model, count]) => `${count} ${model}`)
    .join(', ');
  const rate = Math.round((report.events / Math.max(report.durationMs, 1)) * 1_000);
  const lines = [
    `${report.events} events folded in ${(report.durationMs / 1_000).toFixed(1)} s (${rate} a second) into rows: ${rows}`,
  ];
  const { difference } = report;
  if (difference === null) return [...lines, 'equal: the read models are what the log says'];
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
