import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { createRunQuery, type QueryLimits } from '#libs/analytics/run-query.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();

const createRun = (limits: Partial<QueryLimits> = {}) =>
  createRunQuery({
    db: database.db,
    now: Date.now,
    limits: { timeoutMs: 10_000, runningMax: 4, waitingMax: 1, ...limits },
  });

test('a query that takes too long is refused with what to do about it', async () => {
  const run = createRun({ timeoutMs: 50 });
  const query = run('ws_1', (db) => sql`select pg_sleep(60)`.execute(db));
  await expect(query).rejects.toMatchObject({ kind: 'invalid_request', code: 'query_too_broad' });
  // Its place is free again, and the session has its own limits back.
  expect(await run('ws_1', () => Promise.resolve('answered'))).toBe('answered');
});

test('a workspace runs half of the queries at once; more of it wait, further ones are refused, and others go on', async () => {
  const run = createRun();
  const { promise: end, resolve: finish } = Promise.withResolvers<void>();
  const order: string[] = [];
  const start = (workspaceId: string, name: string) =>
    run(workspaceId, async () => {
      order.push(name);
      await end;
    });
  const own = [start('ws_1', 'first'), start('ws_1', 'second'), start('ws_1', 'waits')];
  await expect(start('ws_1', 'refused')).rejects.toMatchObject({ kind: 'rate_limited', code: 'too_many_queries' });
  const other = start('ws_2', 'other');
  await eventually(
    () => Promise.resolve(order.length),
    (length) => length === 3,
  );
  expect(order.toSorted()).toEqual(['first', 'other', 'second']);
  finish();
  await Promise.all([...own, other]);
  expect(order.at(-1)).toBe('waits');
});

test('a query that fails gives its place back', async () => {
  const run = createRun({ runningMax: 1, waitingMax: 0 });
  await expect(run('ws_1', () => Promise.reject(new Error('broken')))).rejects.toThrow('broken');
  expect(await run('ws_1', () => Promise.resolve(1))).toBe(1);
});
