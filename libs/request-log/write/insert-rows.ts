import { sql, type Kysely } from 'kysely';
import { isPartitionMissing, getSqlState } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { changeOf, getIdRange } from './log-change.ts';
import { packColumns, type RowsAndPacks } from './pack-rows.ts';
import { logColumns } from '../row/log-entry.ts';

/** Writes rows and packs, all or none. */
export type WriteRows = (content: RowsAndPacks) => Promise<void>;

/**
 * Like `createCopyRows`, but skips rows that already exist (after a lost answer to COMMIT): for all rows that could have
 * been written before. One statement with two JSON parameters for any number of rows, because COPY cannot skip rows.
 * Measured on two cores with 64 rows per statement and fsync on, in microseconds of processor time per row, here and in
 * Postgres: this 8.7 + 24.3, COPY 7.5 + 13.7. Compared with other ways to insert (`unnest` of arrays, VALUES), this one
 * costs the event loop least.
 */
export function createInsertRows(db: Kysely<Database>, processId: string): WriteRows {
  const rowList = sql.join(logColumns.map((column) => sql.ref(column)));
  const packList = sql.join(packColumns.map(({ name }) => sql.ref(name)));
  return async ({ rows, packs }) => {
    const change = changeOf([
      ...(rows.length === 0 ? [] : [getIdRange(rows)]),
      ...packs.map(({ first_id: first, last_id: last }) => ({ first, last })),
    ]);
    if (change === null) return;
    await sql`
      with change as (${sql.raw(change)}), pack as (
        insert into request_log_pack (process_id, ${packList})
        select ${processId}::uuid, ${packList} from json_populate_recordset(null::request_log_pack, ${encode(packs)}::json)
        on conflict do nothing
      )
      insert into request_log_row (process_id, ${rowList})
      select ${processId}::uuid, ${rowList} from json_populate_recordset(null::request_log_row, ${encode(rows)}::json)
      on conflict do nothing`.execute(db);
  };
}

export class NotEncodableError extends Error {
  override readonly name = 'NotEncodableError';
}

function encode(rows: readonly object[]): string {
  try {
    return JSON.stringify(rows);
  } catch (error) {
    throw new NotEncodableError('a request-log row cannot be serialised as JSON', { cause: error });
  }
}

/**
 * `no_partition`: create it and retry. `bad_row`: one of the rows is never accepted. `away`: wait, the rows are valid.
 */
export type InsertFailure = 'no_partition' | 'bad_row' | 'away';

/**
 * Classifies a failed insert. Only errors of Postgres about the data itself (SQLSTATE classes 22, 23, 54), and errors
 * before any byte was sent, are a row's fault. After a full disk, a locked table or a server that is being moved, the
 * writer waits.
 */
export function classifyInsertFailure(error: unknown): InsertFailure {
  if (isPartitionMissing(error)) return 'no_partition';
  const state = getSqlState(error);
  if (state !== undefined) return /^(?:22|23|54)/.test(state) ? 'bad_row' : 'away';
  return error instanceof NotEncodableError ? 'bad_row' : 'away';
}
