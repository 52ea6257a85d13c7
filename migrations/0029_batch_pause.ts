import { sql, type Kysely } from 'kysely';

/** When a batch was paused; null: it is not. Workers of the release before do not look at it and go on with the batch. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`alter table batch add column paused_at timestamptz`.execute(db);
}
