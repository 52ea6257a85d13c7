import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { linesTickets } from '#libs/batches/chunks/tickets.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLines, runBatch } from '#test/api/batch-kit.ts';
import { sdks, type Sdk } from '#test/api/sdk.ts';

const [sdk] = sdks as [Sdk];

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

test('the process that validated a small batch runs its lines without a ticket', async () => {
  const { db } = platform.database;
  const client = new sdk.OpenAI({ baseURL: platform.baseUrl, apiKey: platform.adminKey });
  const countTickets = async (): Promise<number> => {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from pgboss.job where name = ${linesTickets.name}`.execute(db);
    return rows[0]?.count ?? 0;
  };
  // Once a second, the worker looks for work, and is not idle for a moment.
  const sent: number[] = [];
  for (let n = 0; n < 4; n += 1) {
    const before = await countTickets();
    const batch = await runBatch(sdk, client, chatLines(10));
    expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 10, completed: 10, failed: 0 } });
    sent.push((await countTickets()) - before);
  }
  expect(Math.min(...sent)).toBe(0);
  const chunks = await db.selectFrom('batch_chunk').select(['chunk', 'state', 'holder', 'claim']).execute();
  expect(chunks).toEqual(Array.from({ length: 4 }, () => ({ chunk: 0, state: 'done', holder: null, claim: 1 })));
});
