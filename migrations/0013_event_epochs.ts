import { sql, type Kysely } from 'kysely';

/**
 * The log is read in the order of (epoch, transaction id, position): transaction ids begin low again in another cluster,
 * so a restored installation raises the epoch (libs/event-log/epoch.ts). Building the index keeps writers waiting for
 * about a second per million events.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`create table event_epoch (epoch integer primary key, raised_at timestamptz not null)`.execute(db);
  await sql`insert into event_epoch values (0, clock_timestamp())`.execute(db);
  await sql`alter table event add column epoch integer not null default 0`.execute(db);
  await sql`create index event_order on event (epoch, transaction_id, position)`.execute(db);
  await sql`drop index event_transaction_position`.execute(db);
  await sql`alter table subscription_checkpoint add column epoch integer not null default 0`.execute(db);
}
