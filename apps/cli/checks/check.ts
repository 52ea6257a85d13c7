import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';

/** A consistency check of the database and files of an installation. `checks.ts` lists all of them. */
export type Check = {
  name: string;
  /** A few words that describe the state if the check passes. */
  summary: string;
  /** Whether `repair` changes anything. */
  canRepair: boolean;
  run: (context: CheckContext, options: CheckOptions) => Promise<CheckResult>;
};

export type CheckContext = {
  pool: Pool;
  db: Kysely<Database>;
  logger: Logger;
  onProgress: (text: string) => void;
};

export type CheckOptions = {
  repair: boolean;
  /** `YYYY-MM-DD`: the request log of earlier days is not checked. */
  since?: string | undefined;
};

export type CheckResult = {
  /** How much was compared and how much of it is wrong, keyed by plural nouns such as `missing_rows`. */
  counts: Record<string, number>;
  findings: Finding[];
};

/** `note`: noteworthy, but not wrong. */
export type Finding = { state: 'problem' | 'repaired' | 'note'; subject: string; message: string };

export type CheckReport = CheckResult & {
  check: string;
  /** Whether no problem remains. */
  ok: boolean;
  /** The number of findings beyond the first `findingsMax`. */
  omitted: number;
  durationMs: number;
};

const findingsMax = 100;
const order: readonly Finding['state'][] = ['problem', 'repaired', 'note'];

/** Runs checks one after the other. An error in one of them becomes a problem of its report. */
export async function runChecks(
  checks: readonly Check[],
  context: CheckContext,
  options: CheckOptions,
): Promise<CheckReport[]> {
  const reports: CheckReport[] = [];
  for (const { name, run } of checks) {
    const startedMs = performance.now();
    const onProgress = (text: string): void => context.onProgress(`${name}: ${text}`);
    const { counts, findings } = await run({ ...context, onProgress }, options).catch(async (error: unknown) => {
      const { ConfigurationError } = await import('#libs/kernel/read-env.ts');
      if (!(error instanceof ConfigurationError)) context.logger.error({ err: error }, 'a check did not finish');
      const message = error instanceof Error ? error.message : String(error);
      return { counts: {}, findings: [{ state: 'problem' as const, subject: 'the check did not finish', message }] };
    });
    reports.push({
      check: name,
      ok: findings.every(({ state }) => state !== 'problem'),
      counts,
      findings: findings.toSorted((a, b) => order.indexOf(a.state) - order.indexOf(b.state)).slice(0, findingsMax),
      omitted: Math.max(0, findings.length - findingsMax),
      durationMs: Math.round(performance.now() - startedMs),
    });
  }
  return reports;
}

/** Returns text such as `events: 2, missing rows: 1`, without the counts that are zero. */
export const describeCounts = (counts: CheckResult['counts']): string =>
  Object.entries(counts)
    .filter(([, count]) => count > 0)
    .map(([noun, count]) => `${noun.replaceAll('_', ' ')}: ${count}`)
    .join(', ');

/** The finding as one line of text. */
export const describeFinding = ({ subject, message }: Finding): string => `${subject}: ${message}`;
