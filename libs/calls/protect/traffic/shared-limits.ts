import { hash } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import { readReportedLimits, type ReportedLimit } from './read-reported-limits.ts';
import type { Report, ReportedLimits } from './reported-limits.ts';

type Deps = {
  db: Kysely<Database>;
  reported: ReportedLimits;
  /** The clock that the notes have their times from. */
  clock: Clock;
  databaseClock: Clock;
  logger: Logger;
  /** How often a process writes what providers reported. Default 2 s. */
  intervalMs?: number;
};

/** What a provider said of its limits for one credential and model, as shown by the admin route. */
export type ProviderLimitRow = {
  id: string;
  label: string;
  provider: string;
  model: string;
  limits: readonly ReportedLimit[];
  /** null: no process waits. */
  waitsUntil: Date | null;
  reportedAt: Date;
};

// The newest ones of a workspace are kept, for a day.
const ofWorkspaceMax = 200;
const forgetAfter = sql<Date>`clock_timestamp() - interval '1 day'`;

/**
 * Writes what providers reported of their limits to this process, in one statement every few seconds and only if there were
 * answers. It is for people to read: no process acts on what another one heard (decision 9).
 */
export function createSharedLimits(deps: Deps): Part & { sync: () => Promise<void> } {
  const { db, reported, clock, databaseClock, logger, intervalMs = 2_000 } = deps;
  const stopping = new AbortController();
  let running: Promise<void> | undefined;
  let isAway = false;

  const write = async (all: readonly Report[]): Promise<void> => {
    const aheadMs = databaseClock.now() - clock.now();
    const rows = all
      .map((one) => toRow(one, clock.now(), aheadMs))
      .filter((row) => row !== null)
      // In one order in all processes, which then never wait for each other in a circle.
      .toSorted((one, other) => (one.id < other.id ? -1 : 1));
    if (rows.length === 0) return;
    await db
      .insertInto('provider_limit')
      .values(rows)
      .onConflict((on) =>
        on.column('id').doUpdateSet({
          limits: sql`case when excluded.reported_at >= provider_limit.reported_at then excluded.limits else provider_limit.limits end`,
          waits_until: sql`greatest(provider_limit.waits_until, excluded.waits_until)`,
          reported_at: sql`greatest(provider_limit.reported_at, excluded.reported_at)`,
        }),
      )
      .execute();
    await sql`
      delete from provider_limit where id in (
        select id from (
          select id, row_number() over (partition by workspace_id order by reported_at desc, id) as place from provider_limit
          where workspace_id = any(${[...new Set(rows.map((row) => row.workspace_id))]})
        ) as placed where place > ${ofWorkspaceMax})`.execute(db);
  };

  const sync = async (): Promise<void> => {
    const all = reported.take();
    if (all.length === 0) return;
    try {
      await write(all);
      if (isAway) logger.info('limits of providers are shared again');
      isAway = false;
    } catch (error) {
      reported.putBack(all);
      if (!isAway) logger.warn({ err: error }, 'limits of providers are not shared while the database is away');
      isAway = true;
    }
  };

  const run = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      await sleep(intervalMs, stopping.signal);
      await sync();
    }
  };

  return {
    name: 'limits of providers',
    sync,
    start: () => {
      running ??= run();
    },
    stop: async () => {
      stopping.abort();
      await running;
    },
  };
}

/** Times become those of the database, because the clocks of processes differ. null: the answer said nothing. */
function toRow({ calls, headers, limitHeaders, atMs }: Report, now: number, aheadMs: number) {
  const limits = readReportedLimits(limitHeaders === undefined ? headers : { ...headers, ...limitHeaders }, atMs);
  const { workspaceId, credentialId, label, provider, model, rateLimitedUntilMs } = calls;
  const waits = rateLimitedUntilMs > now;
  if (limits.length === 0 && !waits) return null;
  const there = limits.map((limit) => ({
    ...limit,
    resetsAtMs: limit.resetsAtMs === null ? null : limit.resetsAtMs + aheadMs,
  }));
  return {
    id: hash('sha256', JSON.stringify([workspaceId, credentialId, model]), 'base64url').slice(0, 22),
    workspace_id: workspaceId,
    label,
    provider,
    model: toStorableText(model),
    limits: JSON.stringify(there),
    waits_until: waits ? new Date(rateLimitedUntilMs + aheadMs) : null,
    reported_at: new Date(atMs + aheadMs),
  };
}

/** Returns what providers said of their limits for the calls of one workspace within a day, newest first; at most 200. */
export async function listProviderLimits(db: Kysely<Database>, workspaceId: string): Promise<ProviderLimitRow[]> {
  const rows = await db
    .selectFrom('provider_limit')
    .selectAll()
    .where('workspace_id', '=', workspaceId)
    .where('reported_at', '>', forgetAfter)
    .orderBy('reported_at', 'desc')
    .orderBy('id')
    .limit(ofWorkspaceMax)
    .execute();
  return rows.map(({ id, label, provider, model, limits, waits_until: waitsUntil, reported_at: reportedAt }) => {
    return { id, label, provider, model, limits, waitsUntil, reportedAt };
  });
}

/** Deletes what is more than a day old. Returns how many rows were deleted. */
export async function sweepProviderLimits(db: Kysely<Database>): Promise<number> {
  const { numDeletedRows } = await db
    .deleteFrom('provider_limit')
    .where('reported_at', '<=', forgetAfter)
    .executeTakeFirstOrThrow();
  return Number(numDeletedRows);
}
