import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { CacheEntry, EntryHead } from './cache-entry.ts';

/** One row to store. */
export type KeptRow = { workspaceId: string; key: Buffer; entry: CacheEntry };

export type StoredAnswers = {
  find: (workspaceId: string, key: Buffer) => Promise<CacheEntry | null>;
  /** Writes rows in one statement. If two rows have the same key, the later one is stored. */
  keep: (rows: readonly KeptRow[]) => Promise<void>;
  /**
   * Deletes expired answers, and the oldest answers of each workspace that exceeds its bytes. Returns how many were
   * deleted.
   */
  sweep: (workspaceBytesMax: number) => Promise<number>;
};

const sweepRows = 1_000;

/** Makes the level of the response cache that all processes share, in Postgres. */
export function createStoredAnswers(db: Kysely<Database>): StoredAnswers {
  return {
    async find(workspaceId, key) {
      const row = await db
        .selectFrom('response_cache')
        .select(['head', 'body', 'created_at', 'expires_at'])
        .where('workspace_id', '=', workspaceId)
        .where('key', '=', key)
        .where('expires_at', '>', sql<Date>`clock_timestamp()`)
        .executeTakeFirst();
      if (!row) return null;
      const { head, body, created_at: created, expires_at: expires } = row;
      return { head, body, createdAtMs: created.getTime(), expiresAtMs: expires.getTime() };
    },

    async keep(rows) {
      // One statement cannot change a row twice.
      const latest = new Map(rows.map((row) => [row.key.toString('hex'), row]));
      await db
        .insertInto('response_cache')
        .values(
          // Sorted by key, so that two processes that write the same rows cannot deadlock.
          [...latest]
            .toSorted(([a], [b]) => (a < b ? -1 : 1))
            .map(([, { workspaceId, key, entry }]) => ({
              workspace_id: workspaceId,
              key,
              head: JSON.stringify(entry.head satisfies EntryHead),
              body: entry.body,
              size_bytes: entry.body.length,
              created_at: new Date(entry.createdAtMs),
              expires_at: new Date(entry.expiresAtMs),
            })),
        )
        .onConflict((on) =>
          on.columns(['workspace_id', 'key']).doUpdateSet((row) => ({
            head: row.ref('excluded.head'),
            body: row.ref('excluded.body'),
            size_bytes: row.ref('excluded.size_bytes'),
            created_at: row.ref('excluded.created_at'),
            expires_at: row.ref('excluded.expires_at'),
          })),
        )
        .execute();
    },

    async sweep(workspaceBytesMax) {
      let gone = 0;
      for (;;) {
        const { numAffectedRows } = await sql`
          delete from response_cache where ctid = any(array(
            select ctid from response_cache where expires_at <= clock_timestamp() limit ${sweepRows}))`.execute(db);
        const deleted = Number(numAffectedRows ?? 0);
        gone += deleted;
        if (deleted < sweepRows) break;
      }
      const { numAffectedRows } = await sql`
        delete from response_cache using (
          select workspace_id, key, sum(size_bytes) over (
            partition by workspace_id order by created_at desc, key rows unbounded preceding) as total
          from response_cache
        ) as aged
        where aged.total > ${workspaceBytesMax}
          and response_cache.workspace_id = aged.workspace_id and response_cache.key = aged.key`.execute(db);
      return gone + Number(numAffectedRows ?? 0);
    },
  };
}
