import { hash } from 'node:crypto';
import { sql, type Kysely, type Selectable, type Transaction } from 'kysely';
import type { CallLimitTable, Database } from '#libs/database/schema.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import { firstLimit, isWorking, renewShare, type CallGrant, type CallLimit, type CallReport } from './call-limit.ts';

/** The limit of one credential and model. */
export type CallLimitName = { id: string; workspaceId: string; credentialId: string; model: string };

export type CallLimitReport = { name: CallLimitName; report: CallReport };

/** `model` must be short. */
export const callLimitName = (workspaceId: string, credentialId: string, model: string): CallLimitName => ({
  id: hash('sha256', `${credentialId}\n${model}`).slice(0, 32),
  workspaceId,
  credentialId,
  model: toStorableText(model),
});

/** A workspace has at most this many limits. Beyond it, those that were unused for the longest time are deleted. */
const perWorkspaceMax = 1_000;
/** How long after its last use a limit is forgotten. */
const sweptAfter = '30 days';

/**
 * Renews the shares of a process in several limits, in one transaction. The rows are locked in the order of their IDs, so
 * that transactions cannot deadlock. A limit is created when there are background calls. null: it does not exist.
 */
export async function renewShares(
  db: Kysely<Database>,
  holder: string,
  reports: readonly CallLimitReport[],
): Promise<(CallGrant | null)[]> {
  return await db.transaction().execute(async (tx) => {
    const needed = reports.filter(({ report }) => isWorking(report) && report.answered === 0);
    if (needed.length > 0) {
      await insertLimits(
        tx,
        needed.map(({ name, report: { whole } }) => ({ ...name, whole })),
      );
    }
    const ids = reports.map(({ name }) => name.id);
    const { rows } = await sql<Selectable<CallLimitTable> & { now: Date }>`
      select *, clock_timestamp() as now from call_limit where id = any(${ids}::text[])
      order by id for update`.execute(tx);
    const byId = new Map(rows.map((row) => [row.id, row]));
    const changed: { id: string; limit: CallLimit }[] = [];
    const grants = reports.map(({ name: { id }, report }) => {
      const row = byId.get(id);
      if (row === undefined) return null;
      const { limit, grant } = renewShare(toLimit(row), holder, report, row.now.getTime());
      changed.push({ id, limit });
      return grant;
    });
    await updateLimits(tx, changed);
    return grants;
  });
}

/** Creates limits that do not exist. */
export async function insertLimits(
  tx: Transaction<Database>,
  limits: readonly (CallLimitName & { whole?: number })[],
): Promise<void> {
  const values = limits.map((limit) => ({ whole: firstLimit, ...limit })).toSorted((a, b) => (a.id < b.id ? -1 : 1));
  const { rows } = await sql<{ workspace_id: string }>`
    insert into call_limit (id, workspace_id, credential_id, model, learned, is_answered, shares, updated_at)
    select id, "workspaceId", "credentialId", model, whole, false, '{}', clock_timestamp()
    from jsonb_to_recordset(${JSON.stringify(values)}::jsonb) as new
      (id text, "workspaceId" text, "credentialId" text, model text, whole double precision)
    on conflict (id) do nothing returning workspace_id`.execute(tx);
  for (const workspaceId of new Set(rows.map((row) => row.workspace_id))) {
    await sql`
      delete from call_limit where id in (
        select id from call_limit where workspace_id = ${workspaceId} order by updated_at desc
        offset ${perWorkspaceMax} for update skip locked)`.execute(tx);
  }
}

async function updateLimits(
  tx: Transaction<Database>,
  changed: readonly { id: string; limit: CallLimit }[],
): Promise<void> {
  if (changed.length === 0) return;
  const values = changed.map(({ id, limit }) => ({ id, ...limit }));
  await sql`
    update call_limit as old set learned = new.learned, is_answered = new."isAnswered", shares = new.shares,
      rejected_at = to_timestamp(new."rejectedAtMs" / 1000.0), burst = new.burst, updated_at = clock_timestamp()
    from jsonb_to_recordset(${JSON.stringify(values)}::jsonb) as new
      (id text, learned double precision, "isAnswered" boolean, "rejectedAtMs" numeric, burst jsonb, shares jsonb)
    where old.id = new.id`.execute(tx);
}

const toLimit = (row: Selectable<CallLimitTable>): CallLimit => ({
  learned: row.learned,
  isAnswered: row.is_answered,
  rejectedAtMs: row.rejected_at?.getTime() ?? null,
  burst: row.burst as CallLimit['burst'],
  shares: row.shares as CallLimit['shares'],
});

/** Returns all shares of a process that stops. */
export async function returnShares(db: Kysely<Database>, holder: string): Promise<void> {
  await sql`update call_limit set shares = shares - ${holder}::text where shares ? ${holder}`.execute(db);
}

/** Deletes limits that were not used for a month. Returns how many. */
export async function sweepCallLimits(db: Kysely<Database>): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from call_limit where updated_at < clock_timestamp() - ${sweptAfter}::interval`.execute(db);
  return Number(numAffectedRows ?? 0);
}
