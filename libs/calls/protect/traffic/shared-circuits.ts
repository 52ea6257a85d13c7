import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import type { Circuits, KnownCircuit } from './circuits.ts';
import { forgetOne } from './forget-one.ts';

type Deps = {
  db: Kysely<Database>;
  circuits: Circuits;
  clock: Clock;
  logger: Logger;
  /** How often a process reads the changes of others. Default 1 s. */
  intervalMs?: number;
};

/** One open circuit, as shown by the admin route. */
export type CircuitRow = {
  id: string;
  label: string;
  provider: string;
  model: string;
  openedAt: Date;
  openUntil: Date;
  failures: number;
  reason: string;
};

// The maximum number of open circuits. A table with more rows means that something else is wrong.
const rowsMax = 1_000;
// A circuit that has been unused for this long is forgotten. The next call is a probe again.
const forgetAfterSeconds = 3_600;

type Open = { untilMs: number; failures: number };
type Pending = { known: KnownCircuit; open: Open | null };

/**
 * Shares which circuits this process opened and closed with other processes through a table, and reads theirs once a
 * second. No call waits for that. While the database is unavailable, each process uses only its own results.
 */
export function createSharedCircuits(deps: Deps): BackgroundLoop {
  const { db, circuits, clock, logger, intervalMs = 1_000 } = deps;
  const pending = new Map<string, Pending>();
  /** The circuits in the table at the last poll. */
  let listed: ReadonlySet<string> = new Set();

  circuits.listen((known, change) => {
    const open = change.state === 'open' ? { untilMs: change.untilMs, failures: change.failures } : null;
    // While the database is unavailable, changes accumulate. Beyond the maximum of the table, the oldest are not
    // shared.
    if (pending.size >= rowsMax && !pending.has(known.id)) forgetOne(pending, () => true);
    pending.set(known.id, { known, open });
    logger.warn(
      {
        provider: known.provider,
        virtual_key: known.label,
        model: known.model,
        reason: known.reason,
        state: change.state,
      },
      change.state === 'open' ? 'circuit opened' : 'circuit closed',
    );
    void loop.wake();
  });

  /**
   * Writes the changes of this process. A change is removed from `pending` only when it was written and has not changed
   * since.
   */
  const write = async (): Promise<void> => {
    for (const [id, change] of pending) {
      const { known, open } = change;
      if (open === null) await db.deleteFrom('provider_circuit').where('id', '=', id).execute();
      else await upsert(db, known, open, clock.now());
      if (pending.get(id) === change) pending.delete(id);
    }
  };

  const read = async (): Promise<void> => {
    const askedAtMs = clock.now();
    const rows = await readOpen(db);
    const found = new Set(rows.map((row) => row.id));
    for (const { id, left_ms: leftMs } of rows) if (!pending.has(id)) circuits.adopt(id, clock.now() + leftMs);
    const changed = new Set<string>();
    for (const { id, changedAtMs } of circuits.all()) if (changedAtMs >= askedAtMs) changed.add(id);
    // Circuits that disappeared since the last poll, but were not changed here meanwhile: a probe of another process
    // succeeded. If the table has more rows than are read, a missing row can still exist. Without this check, one
    // workspace could close another one's circuits that way.
    const missing = [...listed].filter((id) => !found.has(id));
    for (const id of await stillThere(db, missing)) found.add(id);
    for (const id of missing) if (!found.has(id) && !pending.has(id) && !changed.has(id)) circuits.adopt(id, null);
    listed = new Set([...found].slice(0, 2 * rowsMax));
  };

  const sync = async (): Promise<void> => {
    await write();
    await read();
  };
  const loop = createBackgroundLoop({ name: 'shared circuits', periodMs: intervalMs, run: sync, logger });
  return loop;
}

async function upsert(db: Kysely<Database>, known: KnownCircuit, { untilMs, failures }: Open, nowMs: number) {
  const leftSeconds = Math.max(0, untilMs - nowMs) / 1_000;
  const { id, workspaceId, credentialId, label, provider, model, reason } = known;
  await db
    .insertInto('provider_circuit')
    .values({
      id,
      workspace_id: workspaceId,
      credential_id: credentialId,
      label,
      provider,
      model: storable(model),
      opened_at: sql<Date>`clock_timestamp()`,
      // The database's clock, because the clocks of the processes can differ.
      open_until: sql<Date>`clock_timestamp() + make_interval(secs => ${leftSeconds})`,
      failures,
      reason: storable(reason),
    })
    .onConflict((on) =>
      on.column('id').doUpdateSet((row) => ({
        open_until: sql<Date>`greatest(provider_circuit.open_until, excluded.open_until)`,
        failures: row.ref('excluded.failures'),
        reason: row.ref('excluded.reason'),
      })),
    )
    .execute();
}

/** The newest circuits, so that new ones are read even when one workspace opens thousands. */
const readOpen = (db: Kysely<Database>): Promise<{ id: string; left_ms: number }[]> =>
  db
    .selectFrom('provider_circuit')
    .select(['id', sql<number>`(extract(epoch from open_until - clock_timestamp()) * 1000)::float8`.as('left_ms')])
    .where('open_until', '>', sql<Date>`clock_timestamp() - make_interval(secs => ${forgetAfterSeconds})`)
    .orderBy('opened_at', 'desc')
    .limit(rowsMax)
    .execute();

async function stillThere(db: Kysely<Database>, ids: readonly string[]): Promise<string[]> {
  if (ids.length === 0) return [];
  const rows = await db.selectFrom('provider_circuit').select('id').where('id', 'in', ids).execute();
  return rows.map(({ id }) => id);
}

/** Returns the open circuits of one workspace in all processes, newest first; at most 1,000. */
export async function listCircuits(db: Kysely<Database>, workspaceId: string): Promise<CircuitRow[]> {
  const rows = await db
    .selectFrom('provider_circuit')
    .selectAll()
    .where('workspace_id', '=', workspaceId)
    .where('open_until', '>', sql<Date>`clock_timestamp() - make_interval(secs => ${forgetAfterSeconds})`)
    .orderBy('opened_at', 'desc')
    .orderBy('id')
    .limit(rowsMax)
    .execute();
  return rows.map((row) => ({
    id: row.id,
    label: row.label,
    provider: row.provider,
    model: row.model,
    openedAt: row.opened_at,
    openUntil: row.open_until,
    failures: row.failures,
    reason: row.reason,
  }));
}

/** Deletes circuits that are no longer used. Returns how many rows were deleted. */
export async function sweepCircuits(db: Kysely<Database>): Promise<number> {
  const { numDeletedRows } = await db
    .deleteFrom('provider_circuit')
    .where('open_until', '<=', sql<Date>`clock_timestamp() - make_interval(secs => ${forgetAfterSeconds})`)
    .executeTakeFirstOrThrow();
  return Number(numDeletedRows);
}

/** The model can be any text that the caller sent. */
const storable = (text: string): string => toStorableText(text.slice(0, 512));
