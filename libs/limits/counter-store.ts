import { createHash } from 'node:crypto';
import { sql, type Kysely, type Selectable } from 'kysely';
import { LRUCache } from 'lru-cache';
import { formatAmount, parseAmount, type Amount } from '#libs/kernel/amount.ts';
import type { Database, LimitCounterTable } from '#libs/database/schema.ts';
import {
  newCounter,
  renewLease,
  type Counter,
  type LeaseGrant,
  type LeaseRequest,
  type LimitTerms,
} from './counter.ts';
import { periodAt } from './period.ts';

/** One counter of a limit, identified by the values that its calls are grouped by. */
export type CounterName = {
  id: string;
  workspaceId: string;
  /** The ID of the record that has the limit, and which of its limits it is. */
  limitId: string;
  /** Readable; `*` for a limit without groups. */
  valueKey: string;
  kind: 'budget' | 'rate';
};

export type CounterRenewal = { name: CounterName; terms: LimitTerms; request: LeaseRequest };

/** `too_many`: the limit has reached its maximum of counters; `stale`: nothing was granted, ask again. */
export type Renewed = { grant: LeaseGrant; isAlertDue: boolean } | 'too_many' | 'stale';

export type CounterStore = {
  /** Renews leases of several counters in one transaction. The results are in the order of `renewals`. */
  renew(renewals: readonly CounterRenewal[]): Promise<Renewed[]>;
};

/** The id of a counter: the same in every process. */
export const counterId = (limitId: string, valueKey: string): string =>
  `entity_${createHash('sha256').update(`${limitId}\n${valueKey}`).digest('hex').slice(0, 32)}`;

/**
 * Reads and writes counters by `renewLease`. The rows are locked in the order of their IDs, so that transactions cannot
 * deadlock.
 */
export function createCounterStore(deps: { db: Kysely<Database>; countersPerLimitMax: number }): CounterStore {
  const { db, countersPerLimitMax } = deps;
  const known = new Set<string>();
  /**
   * Limits that had reached their maximum of counters. Until an entry expires, no check is made whether there is room
   * again.
   */
  const full = new LRUCache<string, true>({ max: fullMax, ttl: fullMs });

  return {
    renew: async (renewals) =>
      await db.transaction().execute(async (tx) => {
        const unknown = renewals.filter(({ name }) => !known.has(name.id) && !full.has(name.limitId));
        if (unknown.length > 0) await insertCounters(tx, unknown, countersPerLimitMax);
        const ids = renewals.map(({ name }) => name.id);
        const { rows } = await sql<Selectable<LimitCounterTable> & { now: Date }>`
          select *, clock_timestamp() as now from limit_counter where id = any(${ids}::text[])
          order by id for update`.execute(tx);
        const byId = new Map(rows.map((row) => [row.id, row]));
        const changed: { renewal: CounterRenewal; counter: Counter; endMs: number }[] = [];
        const results = renewals.map((renewal): Renewed => {
          const row = byId.get(renewal.name.id);
          // The row existed before and has been swept. The next request creates it again.
          if (row === undefined) return known.has(renewal.name.id) ? 'stale' : 'too_many';
          const renewed = renewLease(toCounter(row), renewal.terms, renewal.request, row.now.getTime());
          if (renewed === null) return 'stale';
          changed.push({ renewal, counter: renewed.counter, endMs: renewed.grant.period.endMs });
          return renewed;
        });
        await updateCounters(tx, changed);
        if (known.size > knownMax) known.clear();
        for (const id of byId.keys()) known.add(id);
        for (const { name } of renewals) if (!byId.has(name.id)) known.delete(name.id);
        for (const { name } of unknown) if (!byId.has(name.id)) full.set(name.limitId, true);
        return results;
      }),
  };
}

/** Counters whose rows are known to exist. An unknown one costs an additional statement. */
const knownMax = 100_000;
/** A caller who sends a new value with each call must not cause a count of the counters for each of them. */
const fullMs = 1_000;
const fullMax = 10_000;

/** Creates the rows of new counters, as far as their limits have room. The counters of each limit are counted once. */
async function insertCounters(db: Kysely<Database>, renewals: readonly CounterRenewal[], max: number): Promise<void> {
  const values = renewals
    .toSorted((a, b) => (a.name.id < b.name.id ? -1 : 1))
    .map(({ name, terms }) => ({ ...name, max: formatAmount(terms.max) }));
  await sql`
    with given as (
      select *, row_number() over (partition by "limitId" order by id) as place
      from jsonb_to_recordset(${JSON.stringify(values)}::jsonb) as one
        (id text, "workspaceId" text, "limitId" text, "valueKey" text, kind text, max numeric)
      where not exists (select from limit_counter as there where there.id = one.id)
    ), counted as materialized (
      select "limitId", (select count(*) from limit_counter as there where there.limit_id = "limitId") as counters
      from (select distinct "limitId" from given) as limits
    )
    insert into limit_counter (id, workspace_id, limit_id, value_key, kind, max, period_start, used, assumed, unpriced,
      is_alerted, leases, updated_at)
    select id, "workspaceId", "limitId", "valueKey", kind, max, to_timestamp(0), 0, 0, 0, false, '{}', to_timestamp(0)
    from given join counted using ("limitId") where counters + place <= ${max} order by id
    on conflict (id) do nothing`.execute(db);
}

async function updateCounters(
  db: Kysely<Database>,
  changed: readonly { renewal: CounterRenewal; counter: Counter; endMs: number }[],
): Promise<void> {
  const values = changed.map(({ renewal: { name, terms }, counter, endMs }) => ({
    id: name.id,
    max: formatAmount(terms.max),
    period_start: counter.periodStartMs,
    period_end: endMs === Number.POSITIVE_INFINITY ? null : endMs,
    used: formatAmount(counter.used),
    assumed: formatAmount(counter.assumed),
    unconfirmed: formatAmount(counter.unconfirmed),
    unpriced: counter.unpriced,
    is_alerted: counter.isAlerted,
    leases: storedLeases(counter),
    updated_at: counter.updatedAtMs,
  }));
  await sql`
    update limit_counter as old set max = new.max, used = new.used, assumed = new.assumed,
      unconfirmed = new.unconfirmed, unpriced = new.unpriced, is_alerted = new.is_alerted, leases = new.leases,
      period_start = to_timestamp(new.period_start / 1000.0),
      period_end = to_timestamp(new.period_end / 1000.0), updated_at = to_timestamp(new.updated_at / 1000.0)
    from jsonb_to_recordset(${JSON.stringify(values)}::jsonb) as new
      (id text, max numeric, period_start numeric, period_end numeric, used numeric, assumed numeric,
        unconfirmed numeric, unpriced bigint, is_alerted boolean, leases jsonb, updated_at numeric)
    where old.id = new.id`.execute(db);
}

type StoredLease = Omit<Counter['leases'][string], 'amount' | 'reported' | 'unconfirmed'> & {
  amount: string;
  reported: string;
  unconfirmed: string;
};

const storedLeases = ({ leases }: Counter): Record<string, StoredLease> =>
  Object.fromEntries(
    Object.entries(leases).map(([holder, lease]) => {
      const { amount, reported, unconfirmed } = lease;
      const stored = {
        amount: formatAmount(amount),
        reported: formatAmount(reported),
        unconfirmed: formatAmount(unconfirmed),
      };
      return [holder, { ...lease, ...stored }];
    }),
  );

/** Converts a row to the form that `renewLease` expects. Its dates must be exact to the millisecond. */
export function toCounter(row: Selectable<LimitCounterTable>): Counter {
  const leases = Object.entries(row.leases as Record<string, StoredLease>).map(
    ([holder, lease]) =>
      [
        holder,
        {
          ...lease,
          amount: parseAmount(lease.amount),
          reported: parseAmount(lease.reported),
          unconfirmed: parseAmount(lease.unconfirmed),
        },
      ] as const,
  );
  return {
    ...newCounter(row.period_start.getTime(), row.updated_at.getTime()),
    used: parseAmount(row.used),
    assumed: parseAmount(row.assumed),
    unconfirmed: parseAmount(row.unconfirmed),
    unpriced: row.unpriced,
    isAlerted: row.is_alerted,
    leases: Object.fromEntries(leases),
  };
}

/**
 * The use of a limit's counters in the period of `now`, for people. Counters of rates are listed with their last
 * window.
 */
export type CounterUse = {
  id: string;
  valueKey: string;
  used: Amount;
  /**
   * The part of `used` that no answer confirms: the use of calls whose answers were lost, and of processes that were
   * killed.
   */
  unconfirmed: Amount;
  unpriced: number;
  max: Amount;
  resetAt: Date | null;
};

export type CounterQuery = {
  limitId: string;
  /** `exhausted`: the limit is used up. */
  status?: 'active' | 'exhausted' | undefined;
  search?: string | undefined;
  skip: number;
  limit: number;
};

/** Returns the counters of a limit, newest first, and how many there are. A counter whose period is over counts 0. */
export async function listCounters(
  db: Kysely<Database>,
  terms: Pick<LimitTerms, 'max' | 'reset'>,
  { limitId, status, search, skip, limit }: CounterQuery,
  nowMs: number,
): Promise<{ counters: CounterUse[]; total: number }> {
  const startsAt = new Date(periodAt(terms.reset, nowMs).startMs);
  const inPeriod = (column: 'used' | 'assumed + unconfirmed') =>
    sql`case when period_start < ${startsAt} then 0 else ${sql.raw(column)} end`;
  const used = inPeriod('used');
  const max = formatAmount(terms.max);
  const listed = sql`limit_id = ${limitId}
    and (${status ?? null}::text is null or (${status ?? null} = 'exhausted') = (${used} >= ${max}::numeric))
    and (${search ?? null}::text is null or position(lower(${search ?? ''}) in lower(value_key)) > 0)`;
  const { rows } = await sql<{
    id: string;
    value_key: string;
    used: string;
    unconfirmed: string;
    unpriced: number;
    reset_at: Date | null;
    total: number;
  }>`
    select id, value_key, ${used}::text as used, ${inPeriod('assumed + unconfirmed')}::text as unconfirmed, unpriced,
      reset_at, (count(*) over ())::int as total
    from limit_counter where ${listed} order by created_at desc, id limit ${limit} offset ${skip}`.execute(db);
  const counters = rows.map((row) => ({
    id: row.id,
    valueKey: row.value_key,
    used: parseAmount(row.used),
    unconfirmed: parseAmount(row.unconfirmed),
    unpriced: row.unpriced,
    max: terms.max,
    resetAt: row.reset_at,
  }));
  if (rows[0] || skip === 0) return { counters, total: rows[0]?.total ?? 0 };
  const { rows: counted } = await sql<{ total: number }>`
    select count(*)::int as total from limit_counter where ${listed}`.execute(db);
  return { counters, total: counted[0]?.total ?? 0 };
}

/** Returns the IDs of those limits of which a counter is used up in the period of `nowMs`, with one statement. */
export async function findExhausted(
  db: Kysely<Database>,
  limits: readonly { limitId: string; terms: Pick<LimitTerms, 'max' | 'reset'> }[],
  nowMs: number,
): Promise<Set<string>> {
  if (limits.length === 0) return new Set();
  const values = limits.map(({ limitId, terms }) => ({
    limit_id: limitId,
    max: formatAmount(terms.max),
    starts_at: periodAt(terms.reset, nowMs).startMs,
  }));
  const { rows } = await sql<{ limit_id: string }>`
    select distinct limit_id from limit_counter
    join jsonb_to_recordset(${JSON.stringify(values)}::jsonb) as given (limit_id text, max numeric, starts_at numeric)
      using (limit_id)
    where case when period_start < to_timestamp(given.starts_at / 1000.0) then 0 else used end >= given.max`.execute(
    db,
  );
  return new Set(rows.map(({ limit_id: id }) => id));
}

/** The leases after the assumed use is removed: their holders can return, and each reports a sum from its beginning. */
const withoutAssumed = sql`coalesce((select jsonb_object_agg(key, case when (value ->> 'isAssumed')::boolean
  then value || '{"amount": "0", "isAssumed": false}' else value end) from jsonb_each(leases)), '{}')`;

/**
 * Sets one counter of a limit to 0, found by its ID or value, and returns the value. Leases stay, because running calls
 * continue. null: there is no such counter.
 */
export async function resetCounter(
  db: Kysely<Database>,
  { limitId, name }: { limitId: string; name: string },
): Promise<string | null> {
  const { rows } = await sql<{ value_key: string }>`
    update limit_counter set used = 0, assumed = 0, unconfirmed = 0, unpriced = 0, is_alerted = false,
      reset_at = clock_timestamp(),
      leases = ${withoutAssumed}
    where limit_id = ${limitId} and (id = ${name} or value_key = ${name}) returning value_key`.execute(db);
  return rows[0]?.value_key ?? null;
}

/** The rows of all counters of a limit. */
export const readCounters = (db: Kysely<Database>, limitId: string): Promise<Selectable<LimitCounterTable>[]> =>
  db.selectFrom('limit_counter').selectAll().where('limit_id', '=', limitId).execute();

/**
 * Raises the use of a counter to `used`. It never lowers it: neither the use that killed processes held, nor the
 * possible cost of lost answers. false: the counter has changed since `row` was read, and stays unchanged. `counter` is
 * the row in its present period.
 */
export async function raiseUsed(
  db: Kysely<Database>,
  row: Selectable<LimitCounterTable>,
  counter: Counter,
  used: Amount,
): Promise<boolean> {
  const { assumed, unconfirmed, unpriced, isAlerted, periodStartMs } = counter;
  const { numAffectedRows } = await sql`
    update limit_counter set used = ${formatAmount(used)}, assumed = ${formatAmount(assumed)},
      unconfirmed = ${formatAmount(unconfirmed)}, unpriced = ${unpriced}, is_alerted = ${isAlerted},
      leases = ${JSON.stringify(storedLeases(counter))}::jsonb, updated_at = clock_timestamp(),
      period_start = to_timestamp(${periodStartMs} / 1000.0)
    where id = ${row.id} and updated_at = ${row.updated_at} and used = ${row.used}`.execute(db);
  return numAffectedRows === 1n;
}

/** How long after its last period a counter is swept. Until then, counters of budgets are listed with a use of 0. */
const sweptAfter = { budget: '30 days', rate: '1 day' };

/**
 * Deletes counters of periods that ended long ago, and returns how many. They have no effect any more, but would count
 * towards the limit's maximum of counters. Counters that are never reset stay.
 */
export async function sweepCounters(db: Kysely<Database>): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from limit_counter where period_end < clock_timestamp()
      - case kind when 'rate' then ${sweptAfter.rate}::interval else ${sweptAfter.budget}::interval end`.execute(db);
  return Number(numAffectedRows ?? 0);
}

/**
 * Marks the alert of a counter's period as recorded. false: it was already marked. Part of the transaction that records
 * it.
 */
export async function claimAlert(db: Kysely<Database>, id: string): Promise<boolean> {
  const { rows } = await sql`
    update limit_counter set is_alerted = true where id = ${id} and not is_alerted returning id`.execute(db);
  return rows.length > 0;
}

/** Deletes the counters of values that contain one of these texts, which are in lower case. */
export async function forgetCountersWith(db: Kysely<Database>, texts: readonly string[]): Promise<void> {
  await sql`
    delete from limit_counter where exists (
      select from unnest(${texts}::text[]) as text where position(text in lower(value_key)) > 0)`.execute(db);
}
