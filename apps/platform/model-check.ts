import type { Kysely } from 'kysely';
import { ModelCheck } from '#libs/contracts/system.ts';
import type { Database } from '#libs/database/schema.ts';

const name = 'read_model_check';

/** Returns the last requested check of the read models; null if there was none. */
export async function readModelCheck(db: Kysely<Database>): Promise<ModelCheck | null> {
  const row = await db.selectFrom('installation').select('value').where('name', '=', name).executeTakeFirst();
  return row === undefined ? null : ModelCheck.parse(JSON.parse(row.value));
}

/** Stores the progress of the check, replacing the previous state. */
export async function recordModelCheck(db: Kysely<Database>, check: ModelCheck): Promise<void> {
  const value = JSON.stringify(check);
  await db
    .insertInto('installation')
    .values({ name, value })
    .onConflict((conflict) => conflict.column('name').doUpdateSet({ value }))
    .execute();
}
