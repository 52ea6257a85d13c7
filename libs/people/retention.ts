import { sql, type Kysely, type RawBuilder, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** Whether a workspace is under legal hold, why, and since when (ISO 8601). */
export type LegalHold = { active: boolean; reason: string; since: string };

/**
 * Every change of a workspace takes this lock, and every deletion shares it. So when the request that sets a hold is
 * answered, no deletion that did not respect it is still running.
 */
export const retentionLock = 'retention';

const hasHold = sql`data @> '{"legal_hold": {"active": true}}'`;

/** SQL: whether the workspace in a column is under legal hold. */
export const isHeld = (column: string): RawBuilder<boolean> =>
  sql`${sql.ref(column)} in (select id from resource where kind = 'workspace' and ${hasHold})`;

/** Runs a bounded deletion in a transaction. Its statements must leave out workspaces that are under legal hold. */
export const deleteUnheld = <Result>(
  db: Kysely<Database>,
  work: (tx: Transaction<Database>) => Promise<Result>,
): Promise<Result> =>
  db.transaction().execute(async (tx) => {
    await shareLock(tx);
    return await work(tx);
  });

async function shareLock(tx: Transaction<Database>): Promise<void> {
  await sql`select pg_advisory_xact_lock_shared(hashtextextended(${retentionLock}, 0))`.execute(tx);
}

/** The workspaces that are under legal hold, with their slugs. */
export async function findHeld(db: Kysely<Database>): Promise<{ id: string; slug: string | null }[]> {
  const { rows } = await sql<{ id: string; slug: string | null }>`
    select id, slug from resource where kind = 'workspace' and ${hasHold}`.execute(db);
  return rows;
}

/** Whether a workspace is under legal hold, until the transaction ends. */
export async function checkHold(tx: Transaction<Database>, workspaceId: string): Promise<boolean> {
  await shareLock(tx);
  const { rows } = await sql`
    select from resource where kind = 'workspace' and id = ${workspaceId} and ${hasHold}`.execute(tx);
  return rows.length > 0;
}

/** The refusal of a deletion. `what` ends the sentence: `so its files cannot be deleted`. */
export function underHold(workspaces: readonly string[], what: string): GatewayError {
  const names = workspaces.slice(0, 10).map((name) => `'${name}'`);
  const subject = names.length === 1 ? `The workspace ${names[0]} is` : `The workspaces ${names.join(', ')} are`;
  const message =
    `${subject} under legal hold, ${what}. An owner or admin of the organisation can lift it: ` +
    `PUT /v1/admin/workspaces/${workspaces[0]} with {"legal_hold": {"active": false, "reason": "…"}}.`;
  return new GatewayError('conflict', 'legal_hold', message);
}

/** How many days the workspaces keep something: those without their own time, and the others; Infinity under legal hold. */
export type Retention = { days: number; own: ReadonlyMap<string, number> };

/** Reads what the defaults of the workspaces say. `days`: for workspaces whose defaults do not. */
export async function readRetention(
  db: Kysely<Database>,
  member: 'request_log_retention_days' | 'results_retention_days',
  days: number,
): Promise<Retention> {
  const ownDays = sql`(data -> 'defaults' ->> ${member})::int`;
  const { rows } = await sql<{ id: string; days: number | null; held: boolean }>`
    select id, ${ownDays} as days, ${hasHold} as held
    from resource where kind = 'workspace' and (${ownDays} is not null or ${hasHold})`.execute(db);
  return { days, own: new Map(rows.map((row) => [row.id, row.held ? Infinity : (row.days ?? days)])) };
}

const dayMs = 86_400_000;

/** The first day (`YYYY-MM-DD`, UTC) that is kept; '' for all. */
export const keptFrom = (days: number, nowMs: number): string =>
  Number.isFinite(days) ? new Date(nowMs - days * dayMs).toISOString().slice(0, 10) : '';

/** Whether a workspace no longer needs a day (`YYYY-MM-DD`, UTC). */
export const isPast = ({ days, own }: Retention, workspaceId: string, day: string, nowMs: number): boolean =>
  day < keptFrom(own.get(workspaceId) ?? days, nowMs);

/** The shortest time of all workspaces. */
export const shortest = ({ days, own }: Retention): number => Math.min(days, ...own.values());
