import { sql, type Kysely } from 'kysely';

/**
 * Calls that this gateway refused, apart from those that failed at their provider. In rollups of earlier calls all of them count
 * as failed there.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  for (const table of ['call_rollup', 'metadata_rollup', 'value_rollup']) {
    await sql`alter table ${sql.table(table)} add column refused_requests bigint not null default 0`.execute(db);
  }
}
