import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import type { Circuits, KnownCircuit } from './circuits.ts';
import { forgetOne } from './forget-one.ts';

type Deps = {
  db: Kysely<Database>;
  circuits: Circuits;
  clock: Clock;
  logger: Logger;
  /** How soon one process hears of what another found out. Default 1 s. */
  intervalMs?: number;
};

/** One open circuit, as the admin route shows it. */
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

// Open ones at a time; a table that grows past it is a sign of something else.
const rowsMax = 1_000;
// A circuit that nobody has asked about for so long is forgotten: the next caller probes again.
const forgetAfterSeconds = 3_600;

type Pending = { known: KnownCircuit; open: { untilMs: number; failures: number } | null };

/**
 * Tells other processes which circuits this one opened and closed, through a table, and hears of theirs: a poll a second,
 * off the path of calls. While the database is away each process goes by what it sees itself.
 */
export function createSharedCircuits(deps: Deps): Part & { sync: () => Promise<void> } {
  const { db, circuits, clock, logger, intervalMs = 1_000 } = deps;
  const stopping = new AbortController();
  const pending = new Map<string, Pending>();
  /** Circuits that the table held at the last poll. */
  let listed: ReadonlySet<string> = new Set();
  let wake = new AbortController();
  let running: Promise<void> | undefined;
  let isAway = false;

  circuits.listen((known, change) => {
    const open = change.state === 'open' ? { untilMs: change.untilMs, failures: change.failures } : null;
    // While the database is away: of more than the table may hold, the oldest stays this process's own.
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
    wake.abort();
  });

  /** What this process found out. Taken out of `pending` only when it is written and nothing newer was found out. */
  const write = async (): Promise<void> => {
    for (const [id, change] of pending) {
      const { known, open } = change;
      if (open === null) await db.deleteFrom('provider_circuit').where('id', '=', id).execute();
      else await upsert(known, open);
      if (pending.get(id) === change) pending.delete(id);
    }
  };

  const upsert = async (known: KnownCircuit, open: { untilMs: number; failures: number }): Promise<void> => {
    const leftSeconds = Math.max(0, open.untilMs - clock.now()) / 1_000;
    // The database's clock: those of the processes may differ.
    const until = sql<Date>`clock_timestamp() + make_interval(secs => ${leftSeconds})`;
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
        open_until: until,
        failures: open.failures,
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
  };

  const stillThere = async (ids: readonly string[]): Promise<string[]> => {
    if (ids.length === 0) return [];
    const rows = await db.selectFrom('provider_circuit').select('id').where('id', 'in', ids).execute();
    return rows.map(({ id }) => id);
  };

  const read = async (): Promise<void> => {
    const askedAtMs = clock.now();
    const rows = await db
      .selectFrom('provider_circuit')
      .select(['id', sql<number>`(extract(epoch from open_until - clock_timestamp()) * 1000)::float8`.as('left_ms')])
      .where('open_until', '>', sql<Date>`clock_timestamp() - make_interval(secs => ${forgetAfterSeconds})`)
      // The newest: what was opened since the last look is heard of even when somebody opens thousands.
      .orderBy('opened_at', 'desc')
      .limit(rowsMax)
      .execute();
    const found = new Set(rows.map((row) => row.id));
    for (const { id, left_ms: leftMs } of rows) if (!pending.has(id)) circuits.adopt(id, clock.now() + leftMs);
    const changed = new Set<string>();
    for (const { id, changedAtMs } of circuits.all()) if (changedAtMs >= askedAtMs) changed.add(id);
    // Gone since the last time, and not by something that happened here meanwhile: somebody's probe succeeded. Of more
    // rows than are read some are missing here and still there, by which one workspace would close another's circuits.
    const missing = [...listed].filter((id) => !found.has(id));
    for (const id of await stillThere(missing)) found.add(id);
    for (const id of missing) if (!found.has(id) && !pending.has(id) && !changed.has(id)) circuits.adopt(id, null);
    listed = new Set([...found].slice(0, 2 * rowsMax));
  };

  const sync = async (): Promise<void> => {
    try {
      await write();
      await read();
      if (isAway) logger.info('circuits are shared again');
      isAway = false;
    } catch (error) {
      if (!isAway) logger.warn({ err: error }, 'circuits are not shared while the database is away');
      isAway = true;
    }
  };

  const run = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      await sync();
      await sleep(intervalMs, AbortSignal.any([stopping.signal, wake.signal]));
      wake = new AbortController();
    }
  };

  return {
    name: 'shared circuits',
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

/** The open circuits of one workspace, of all processes, the newest first; at most 1,000. */
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

/** Deletes what is forgotten; returns how many rows went. */
export async function sweepCircuits(db: Kysely<Database>): Promise<number> {
  const { numDeletedRows } = await db
    .deleteFrom('provider_circuit')
    .where('open_until', '<=', sql<Date>`clock_timestamp() - make_interval(secs => ${forgetAfterSeconds})`)
    .executeTakeFirstOrThrow();
  return Number(numDeletedRows);
}

/** A model is whatever the caller called it. */
const storable = (text: string): string => toStorableText(text.slice(0, 512));
