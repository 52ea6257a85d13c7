import { createServer, type AddressInfo } from 'node:net';
import { once } from 'node:events';
import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform } from '#test/platform.ts';
import { chatLines, createBatch, ended } from './batch-kit.ts';
import { sdks } from './sdk.ts';

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  return port;
}

// SLUICE_REQUEST_LOG_QUEUE bounds the request-log rows that wait in memory. The API then rejects calls; a worker must start no
// lines.
test(
  'a worker begins no more lines while the queue of the request log is full',
  { timeout: 90_000 },
  async ({ onTestFinished }) => {
    const platform = await startPlatform({ worker: false });
    onTestFinished(() => platform.stop());
    const port = await freePort();
    await platform.startWorker({
      SLUICE_CALLS_MAX: '128',
      SLUICE_REQUEST_LOG_QUEUE: '100',
      SLUICE_REQUEST_LOG_DISK: '0',
      SLUICE_WORKER_PORT: String(port),
    });
    // What CREATE INDEX takes, or any other maintenance of the log: readers continue, writers wait. Lines that are settled
    // together are written to the packs.
    const over = Promise.withResolvers<void>();
    const isLocked = Promise.withResolvers<void>();
    const locking = platform.database.db.transaction().execute(async (tx) => {
      await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
      await sql`lock table request_log_row, request_log_pack in share mode`.execute(tx);
      isLocked.resolve();
      await over.promise;
    });
    onTestFinished(async () => {
      over.resolve();
      await locking;
    });
    await isLocked.promise;
    const [sdk] = sdks;
    if (!sdk) throw new Error('no SDK');
    const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    const batch = await createBatch(sdk, client, chatLines(3_000));
    const waitingRows = async (): Promise<number> => {
      const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
      return Number(/^sluice_request_log_waiting_rows (\d+)/m.exec(text)?.[1] ?? 0);
    };
    await eventually(waitingRows, (rows) => rows >= 100);
    await sleep(2_000);
    // As many more as there were calls under way, and a few lines of each of the 8 chunks that had begun.
    expect(await waitingRows()).toBeLessThanOrEqual(100 + 128 + 8 * 5);
    over.resolve();
    expect(await ended(client, batch)).toMatchObject({ status: 'completed', request_counts: { completed: 3_000 } });
  },
);
