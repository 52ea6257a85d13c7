import { expect, test } from 'vitest';
import { dueAfter } from '#libs/fine-tuning/start-job.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const dayMs = 86_400_000;

test('a provider that asks for a very long wait is tried again after a day', async () => {
  const [soon, late] = await Promise.all([dueAfter(database.db, 1_000), dueAfter(database.db, 1e15)]);
  expect(late.getTime() - soon.getTime()).toBeLessThanOrEqual(dayMs);
  expect(late.getTime() - soon.getTime()).toBeGreaterThan(dayMs - 60_000);
});
