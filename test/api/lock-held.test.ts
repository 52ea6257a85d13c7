import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLines, createBatch } from './batch-kit.ts';
import { sdks } from './sdk.ts';

// A worker that hangs (SIGSTOP, a paused container, a long GC) inside a settle holds the lock of its batch for up to
// 15 s (idle_in_transaction_session_timeout). lock_timeout is 5 s. What is said to whoever wants the batch meanwhile?
let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
});
afterAll(() => platform.stop());

test(
  'a cancel and a deletion that meet a stream locked by a hung process are answered with a time to come back, not 500',
  { timeout: 60_000 },
  async () => {
    const [sdk] = sdks;
    if (!sdk) throw new Error('no SDK');
    const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
    const batch = await createBatch(sdk, client, chatLines(1));
    const held = Promise.withResolvers<void>();
    const isHeld = Promise.withResolvers<void>();
    const holder = platform.database.db.transaction().execute(async (tx) => {
      for (const id of [batch.id, batch.input_file_id])
        await sql`select pg_advisory_xact_lock(hashtextextended(${id}, 0))`.execute(tx);
      isHeld.resolve();
      await held.promise;
    });
    await isHeld.promise;
    const call = async (method: string, path: string) => {
      const response = await fetch(`${platform.baseUrl}${path}`, {
        method,
        headers: { authorization: `Bearer ${platform.adminKey}` },
      });
      return { status: response.status, body: await response.text() };
    };
    const [cancel, remove] = await Promise.all([
      call('POST', `/batches/${batch.id}/cancel`),
      call('DELETE', `/files/${batch.input_file_id}`),
    ]);
    held.resolve();
    await holder;
    expect([cancel, remove]).toEqual([
      { status: 503, body: expect.stringContaining('database_unavailable') },
      { status: 503, body: expect.stringContaining('database_unavailable') },
    ]);
  },
);
