import { runChecks, type CheckOptions, type CheckReport } from '#apps/cli/checks/check.ts';
import { checks } from '#apps/cli/checks/checks.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import type { TestDatabase } from './postgres.ts';

const logger = createLogger({ name: 'test', level: 'silent' });

/** The report of one check of `sluice check`, run in this process. */
export async function runCheck(
  { pool, db }: Pick<TestDatabase, 'pool' | 'db'>,
  check: string,
  options: Partial<CheckOptions> = {},
): Promise<CheckReport> {
  const chosen = checks.filter(({ name }) => name === check);
  const [report] = await runChecks(chosen, { pool, db, logger, onProgress: () => {} }, { repair: false, ...options });
  if (!report) throw new Error(`There is no check ${check}.`);
  return report;
}
