import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform } from '#test/platform.ts';
import { createTestDatabase } from '#test/postgres.ts';
import { startTcpProxy } from '../integration/database/tcp-proxy.ts';

// The connection of an upload's COMMIT is lost, and the server is slow with that COMMIT (a synchronous standby, a full
// disk queue), so that the repeat waits for the stream's lock until lock_timeout: 409 `request_in_progress`. Then the
// COMMIT goes through.
test(
  'an upload whose COMMIT was lost and went through keeps its content',
  { timeout: 90_000 },
  async ({ onTestFinished }) => {
    const database = await createTestDatabase();
    onTestFinished(() => database.drop());
    const proxy = await startTcpProxy(database.connectionString);
    onTestFinished(() => proxy.close());
    // As in a Postgres of one's own (DATABASE_URL): the embedded one looks every 5 s whether its client is still there.
    await sql`alter database ${sql.ref(new URL(database.connectionString).pathname.slice(1))} set client_connection_check_interval = 0`.execute(
      database.db,
    );
    const platform = await startPlatform({ worker: false, environment: { DATABASE_URL: proxy.connectionString } });
    onTestFinished(() => platform.stop());
    const { db } = database;
    await sql`create table slow_commit (on_ boolean)`.execute(db);
    await sql`insert into slow_commit values (true)`.execute(db);
    await sql`create function slow() returns trigger language plpgsql security definer as $$ begin
    if (select on_ from slow_commit) then perform pg_sleep(14); end if; return null; end $$`.execute(db);
    await sql`create constraint trigger slow after insert on command_result deferrable initially deferred
    for each row execute function slow()`.execute(db);
    const upload = async (retry: number): Promise<{ status: number; body: { id: string } }> => {
      const form = new FormData();
      form.append('purpose', 'batch');
      form.append('file', new Blob(['{"custom_id":"a"}\n']), 'a.jsonl');
      const headers = {
        authorization: `Bearer ${platform.adminKey}`,
        'idempotency-key': 'one',
        'x-stainless-retry-count': String(retry),
      };
      const response = await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers, body: form });
      return { status: response.status, body: (await response.json()) as { id: string } };
    };
    const first = upload(0);
    await eventually(
      async () =>
        (
          await sql<{
            n: number;
          }>`select count(*)::int as n from pg_stat_activity where query ilike 'commit%' and state = 'active' and datname = current_database()`.execute(
            db,
          )
        ).rows[0]?.n,
      (n) => n === 1,
      { timeoutMs: 10_000 },
    );
    await sql`update slow_commit set on_ = false`.execute(db);
    proxy.resetAll();
    await first;
    // The client does as it is told.
    await eventually(
      async () => (await sql<{ n: number }>`select count(*)::int as n from file`.execute(db)).rows[0]?.n,
      (n) => n === 1,
      { timeoutMs: 15_000 },
    );
    const second = await upload(1);
    expect(second.status).toBe(200);
    const content = await fetch(`${platform.baseUrl}/files/${second.body.id}/content`, {
      headers: { authorization: `Bearer ${platform.adminKey}` },
    });
    expect({ status: content.status, text: await content.text() }).toEqual({
      status: 200,
      text: '{"custom_id":"a"}\n',
    });
  },
);
