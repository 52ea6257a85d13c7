import fc from 'fast-check';
import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { admitUpload } from '#libs/files/files.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();

const insertFile = (id: string, workspaceId: string, bytes: number) =>
  sql`insert into file (id, workspace_id, version, updated_at, purpose, filename, bytes, sha256, blob, created_at)
    values (${id}, ${workspaceId}, 1, now(), 'batch', 'f', ${bytes}, '', '', now())`.execute(database.db);

test('the sum of stored bytes follows every change of a file', async () => {
  const { db } = database;
  const id = fc.integer({ min: 1, max: 5 }).map((n) => `file-${n}`);
  const workspaceId = fc.constantFrom('ws_1', 'ws_2');
  const step = fc.oneof(
    fc.record({ do: fc.constant('insert' as const), id, workspaceId, bytes: fc.nat(1_000) }),
    fc.record({ do: fc.constantFrom('delete' as const, 'remove' as const, 'touch' as const), id }),
    fc.constant({ do: 'rebuild' as const }),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
      await sql`delete from file`.execute(db);
      for (const one of steps) {
        if (one.do === 'insert') await insertFile(one.id, one.workspaceId, one.bytes).catch(() => {});
        else if (one.do === 'delete')
          await sql`update file set deleted_at = now(), version = version + 1 where id = ${one.id}`.execute(db);
        else if (one.do === 'remove') await sql`delete from file where id = ${one.id}`.execute(db);
        else if (one.do === 'touch')
          await sql`update file set deleted_at = deleted_at, bytes = bytes where id = ${one.id}`.execute(db);
        else
          await sql`with gone as (delete from file where deleted_at is null returning *) select from gone`.execute(db);
      }
      const { rows } = await sql<{ kept: number; counted: number }>`
        select (select coalesce(sum(bytes), 0) from stored_bytes where workspace_id = workspace.id)::int as kept,
          (select coalesce(sum(bytes), 0) from file where workspace_id = workspace.id and deleted_at is null)::int as counted
        from unnest(array['ws_1', 'ws_2']) as workspace (id)`.execute(db);
      for (const { kept, counted } of rows) expect(kept).toBe(counted);
    }),
    { numRuns: 40 },
  );
});

test('an upload is admitted by that sum, and by the files that were deleted within a day', async () => {
  const { db } = database;
  await sql`delete from file`.execute(db);
  for (let n = 0; n < 200; n += 1) await insertFile(`file-${n}`, 'ws_1', 10);
  await sql`update file set deleted_at = now() - interval '2 days' where id >= 'file-15' and id < 'file-2'`.execute(db);
  await sql`update file set deleted_at = now() where id = 'file-7'`.execute(db);
  const { rows } = await sql<{ bytes: number }>`
    select sum(bytes)::int as bytes from file
    where deleted_at is null or deleted_at > now() - interval '1 day'`.execute(db);
  const bytes = rows[0]?.bytes ?? 0;
  await admitUpload(db, 'ws_1', bytes + 1);
  await expect(admitUpload(db, 'ws_1', bytes)).rejects.toMatchObject({ code: 'storage_quota_exceeded' });
  await admitUpload(db, 'ws_2', 1);
  await sql`analyze file`.execute(db);
  const read = await db.transaction().execute(async (tx) => {
    const rowsRead = async (): Promise<number> => {
      const found = await sql<{ rows: number }>`
        select (seq_tup_read + idx_tup_fetch)::int as rows from pg_stat_xact_all_tables where relname = 'file'`.execute(
        tx,
      );
      return found.rows[0]?.rows ?? 0;
    };
    const before = await rowsRead();
    await admitUpload(tx, 'ws_1', bytes + 1);
    return (await rowsRead()) - before;
  });
  expect(read).toBeLessThanOrEqual(1);
});
