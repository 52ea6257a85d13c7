import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { createRunQuery } from '#libs/analytics/run-query.ts';
import { createTurns } from '#libs/kernel/sharing/turns.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();

test('a query that takes too long is refused with what to do about it', async () => {
  const turns = createTurns({ runningMax: 4, waitingMax: 1 }, 'queries');
  const run = createRunQuery({ db: database.db, now: Date.now, turns, timeoutMs: 50 });
  const query = run('ws_1', (db) => sql`select pg_sleep(60)`.execute(db));
  await expect(query).rejects.toMatchObject({ kind: 'invalid_request', code: 'query_too_broad' });
  // Its place is free again, and the session has its own limits back.
  expect(await run('ws_1', () => Promise.resolve('answered'))).toBe('answered');
});
