import { sql, type Kysely } from 'kysely';

/** What workers look for again and again is found by an index: chunks to release, chunks that are out, deadlines. */
export async function up(db: Kysely<unknown>): Promise<void> {
  // In which order chunks of different batches are released: see libs/batches/release-chunks.ts. Those from before come first.
  await sql`alter table batch_chunk add column release_order timestamptz not null default '-infinity'`.execute(db);
  await sql`
    create index batch_chunk_pending on batch_chunk (release_order, batch_id, chunk) where state = 'pending'`.execute(
    db,
  );
  await sql`create index batch_chunk_released on batch_chunk (batch_id, chunk) where state = 'released'`.execute(db);

  await sql`
    create index batch_deadline on batch (expires_at)
    where status in ('validating', 'in_progress', 'cancelling')`.execute(db);
  await sql`create index batch_cancelling on batch (cancelling_at) where status = 'cancelling'`.execute(db);
}
