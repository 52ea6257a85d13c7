import { randomUUID } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import type { Pool } from 'pg';
import { migrate } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { copyLog, countEvents, selectPart, type LogEnd } from '#libs/event-log/copy-log.ts';
import { startEpoch } from '#libs/event-log/epoch.ts';
import { collectUpcasts } from '#libs/event-log/inline-model.ts';
import { newestClosed, newestEvent } from '#libs/event-log/read-events.ts';
import { fillInlineModels } from '#libs/event-log/rebuild.ts';
import { ensureCheckpoint, moveTo, rebuildSubscriber } from '#libs/event-log/subscriber.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { inlineModels } from '../../platform/models.ts';
import { subscribers } from '../../platform/subscribers.ts';

export type ReplayReport = {
  events: number;
  lastEvent: { position: number; recordedAt: Date } | null;
  /** The number of rows of each table that was built. */
  rows: Record<string, number>;
  problems: string[];
};

/**
 * Builds the tables that are derived from the event log, as they were after a part of it, in an empty database. The log is
 * copied first, and then folded. Throws ConfigurationError if the database is not empty, or the log has fewer events than
 * `until` names.
 */
export async function replayLog(
  source: Kysely<Database>,
  { into, until }: { into: string; until: LogEnd },
  onProgress: (text: string) => void,
  logger: Logger,
): Promise<ReplayReport> {
  const part = await selectPart(source, until);
  if (until !== null && 'events' in until && part.events < until.events)
    throw new ConfigurationError(`The log has only ${part.events} events. Use a lower number for --until.`);
  const unlimited = { statementTimeoutMs: 0, transactionTimeoutMs: 0, idleInTransactionTimeoutMs: 0 };
  const pool = createPool({ connectionString: into, applicationName: 'sluice-replay', max: 4, ...unlimited }, logger);
  try {
    const target = createDatabase(pool);
    await assertEmpty(target);
    onProgress('migrations');
    await migrate({ connectionString: into, logger });
    await target.transaction().execute(async (tx) => {
      await copyLog(source, tx, part, (events) => onProgress(`${events} of ${part.events} events copied`));
      // A process with the blobs of the source would delete those that this database does not name.
      const value = `replay_${randomUUID()}`;
      await tx.insertInto('installation').values({ name: 'blob_store_id', value }).execute();
    });
    await sql`analyze event`.execute(target);
    // Subscribers read the events of earlier epochs whatever transaction IDs these have.
    await startEpoch(target);
    return await buildTables(pool, target, part.events, onProgress);
  } finally {
    await pool.end();
  }
}

async function assertEmpty(db: Kysely<Database>): Promise<void> {
  const { rows } = await sql<{ tables: number }>`
    select count(*) as tables from pg_class join pg_namespace on pg_namespace.oid = relnamespace
    where relkind in ('r', 'p', 'v', 'm', 'S') and nspname !~ '^pg_' and nspname <> 'information_schema'`.execute(db);
  if (rows[0]?.tables === 0) return;
  throw new ConfigurationError('The database of --into is not empty. Create a new one, also after an interrupted run.');
}

async function buildTables(
  pool: Pool,
  db: Kysely<Database>,
  copied: number,
  onProgress: (text: string) => void,
): Promise<ReplayReport> {
  const upcasts = collectUpcasts(inlineModels);
  const folded = await fillInlineModels(pool, inlineModels, (events) =>
    onProgress(`${events} of ${copied} events folded`),
  );
  const problems: string[] = [];
  const expect = (what: string, found: number, expected: number): void => {
    if (found !== expected) problems.push(`${what}: ${found} instead of ${expected}`);
  };
  const rows: Record<string, number> = {};
  for (const [table, expected] of Object.entries(folded)) {
    rows[table] = await countRows(db, table as keyof Database);
    expect(`rows of ${table}`, rows[table], expected);
  }
  for (const subscriber of subscribers) {
    const { name, tables } = subscriber;
    if (tables.length > 0) {
      const showEvents = (events: number): void => onProgress(`${events} of ${copied} events applied by ${name}`);
      await rebuildSubscriber(db, subscriber, upcasts, showEvents);
      for (const table of tables) rows[table] = await countRows(db, table);
      continue;
    }
    // Its effects are not repeated.
    await ensureCheckpoint(db, subscriber);
    const end = await newestClosed(db);
    await db.transaction().execute((tx) => moveTo(tx, name, end));
  }
  const { events, changed } = await countEvents(db);
  expect('events', events, copied);
  expect('events whose hash does not fit them', changed, 0);
  return { events, lastEvent: await newestEvent(db), rows, problems };
}

async function countRows(db: Kysely<Database>, table: keyof Database): Promise<number> {
  const { rows } = await sql<{ count: number }>`select count(*) as count from ${sql.table(table)}`.execute(db);
  return rows[0]?.count ?? 0;
}

/** The report as text, one line each. */
export const describeReplay = ({ events, lastEvent, rows, problems }: ReplayReport): string[] => [
  lastEvent === null
    ? 'The part of the log is empty.'
    : `Built from ${events} events, of which the last is from ${lastEvent.recordedAt.toISOString()}:`,
  ...Object.entries(rows).map(([table, count]) => `  ${table}: ${count} rows`),
  'Not in it: blobs, the request log and analytics, secrets, lines and results of batches, counters of limits, webhook',
  'deliveries, jobs, and texts that were erased since.',
  ...(problems.length === 0 ? [] : ['Problems:', ...problems.map((problem) => `  ${problem}`)]),
];
