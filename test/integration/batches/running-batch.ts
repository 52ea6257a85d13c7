import { sql } from 'kysely';
import { afterAll, beforeAll } from 'vitest';
import { allQueues } from '#apps/platform/queues.ts';
import { batchModel, type BatchRow } from '#libs/batches/batch-model.ts';
import { chunkQueue } from '#libs/batches/chunks/batch-queues.ts';
import type { BatchEvent } from '#libs/batches/batch.ts';
import { chunkJobId, enqueueChunks, dispatchOrder } from '#libs/batches/chunks/dispatch-chunks.ts';
import { resultLine } from '#libs/batches/results/result-line.ts';
import { ensureResultsPartition, resultsBucket } from '#libs/batches/results/results-bucket.ts';
import type { LineResult } from '#libs/batches/results/settle-group.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { newId } from '#libs/kernel/ids.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createJobQueue, type JobQueue } from '#libs/queue/job-queue.ts';
import type { TestDatabase } from '#test/postgres.ts';

export const silent = createLogger({ name: 'test', level: 'silent' });
const metadata = { actor: { type: 'system' as const, id: 'test' } };

export type Claim = { id: string; retryCount: number };

/** A queue and an event log on the test database, for tests and hooks only. Nothing takes jobs by itself. */
export function useBatchEngine(database: TestDatabase): { queue: JobQueue; eventLog: EventLog } {
  let queue: JobQueue | undefined;
  beforeAll(async () => {
    queue = createJobQueue({
      connectionString: database.connectionString,
      role: 'sender',
      queues: allQueues,
      logger: silent,
      poolSizeMax: 2,
    });
    await queue.start?.();
  });
  afterAll(async () => {
    await queue?.stop?.();
  });
  return {
    get queue() {
      if (!queue) throw new Error('The queue is there inside tests and hooks only.');
      return queue;
    },
    get eventLog() {
      return createEventLog(database.db);
    },
  };
}

/** A batch in progress with chunks of `linesPerChunk` lines, numbered 1 to `lines`. There is no real file. */
export async function createRunningBatch(
  database: TestDatabase,
  engine: { eventLog: EventLog },
  options: { lines: number; linesPerChunk?: number; workspaceId?: string },
): Promise<string> {
  const { lines, linesPerChunk = lines, workspaceId = 'ws_1' } = options;
  const id = newId('batch_');
  const chunkCount = Math.ceil(lines / linesPerChunk);
  const events: BatchEvent[] = [
    {
      type: 'batch.created',
      data: {
        input_file_id: 'file-input',
        endpoint: '/v1/chat/completions',
        completion_window: '24h',
        metadata: null,
        expires_at: new Date(Date.now() + 86_400_000).toISOString(),
        output_expires_after: null,
        target: { type: 'none' },
        gateway_options: {},
        headers: {},
      },
    },
    { type: 'batch.validated', data: { line_count: lines, chunk_count: chunkCount, model: 'm' } },
  ];
  await engine.eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    const batch = await unit.append(batchModel, id, events);
    for (let chunk = 0; chunk < chunkCount; chunk += 1) {
      const first = chunk * linesPerChunk + 1;
      await unit.tx
        .insertInto('batch_chunk')
        .values({
          batch_id: id,
          chunk,
          byte_offset: 0,
          byte_length: 1,
          range_first_line: first,
          first_line: first,
          line_count: Math.min(linesPerChunk, lines - first + 1),
          enqueue_order: dispatchOrder(batch),
        })
        .execute();
    }
  });
  await ensureResultsPartition(database.db, resultsBucket(await readBatch(database, id)));
  return id;
}

export async function readBatch({ db }: TestDatabase, id: string): Promise<BatchRow> {
  return await db.selectFrom('batch').selectAll().where('id', '=', id).executeTakeFirstOrThrow();
}

export async function readChunks({ db }: TestDatabase, id: string) {
  return await db.selectFrom('batch_chunk').selectAll().where('batch_id', '=', id).orderBy('chunk').execute();
}

export async function readEvents({ db }: TestDatabase, id: string): Promise<BatchEvent[]> {
  return (await readStream(db, id)).map(({ type, data }) => ({ type, data }) as BatchEvent);
}

/** Enqueues what is pending and claims the job of a chunk, as a worker does. */
export async function claimChunk(
  database: TestDatabase,
  engine: { queue: JobQueue },
  id: string,
  chunk: number,
): Promise<Claim> {
  await enqueueChunks(database.db, engine.queue, { ofBatch: 1_000, ofAll: 1_000 });
  const { generation } = (await readChunks(database, id)).find((row) => row.chunk === chunk) ?? { generation: 0 };
  const jobId = chunkJobId(id, chunk, generation);
  const { rows } = await sql<{ retry_count: number }>`
    update pgboss.job set state = 'active', started_on = now(), heartbeat_on = now(),
      retry_count = case when started_on is not null then retry_count + 1 else retry_count end
    where name = ${chunkQueue.name} and id = ${jobId}::uuid and state < 'active'
    returning retry_count`.execute(database.db);
  const row = rows[0];
  if (!row) throw new Error(`chunk ${chunk} of ${id} has no job to claim`);
  return { id: jobId, retryCount: row.retry_count };
}

/** What pg-boss's monitor does with the job of a worker that has missed its heartbeat. */
export const loseClaim = (engine: { queue: JobQueue }, claim: Claim): Promise<boolean> =>
  engine.queue.handBack(chunkQueue, claim, 'job heartbeat timeout');

export async function requestCancel(engine: { eventLog: EventLog }, id: string): Promise<void> {
  await engine.eventLog.transact({ workspaceId: 'ws_1', streams: [id], metadata }, (unit) =>
    unit.append(batchModel, id, [{ type: 'batch.cancel_requested', data: {} }]),
  );
}

/** What `Batches.control` does. */
export async function control(
  engine: { eventLog: EventLog },
  id: string,
  type: 'batch.paused' | 'batch.resumed',
): Promise<void> {
  await engine.eventLog.transact({ workspaceId: 'ws_1', streams: [id], metadata }, (unit) =>
    unit.append(batchModel, id, [{ type, data: {} }]),
  );
}

/** What happens ten minutes after a cancel or at the deadline, whatever is still running. */
export async function closeLate(
  engine: { eventLog: EventLog },
  id: string,
  reason: 'cancelled' | 'expired' = 'cancelled',
): Promise<void> {
  await engine.eventLog.transact({ workspaceId: 'ws_1', streams: [id], metadata }, (unit) =>
    unit.append(batchModel, id, [{ type: 'batch.finalizing', data: { reason } }]),
  );
}

/** A result of a line. `text` distinguishes it from another result of the same line. */
export function lineResult(batchId: string, line: number, more: Partial<LineResult> & { text?: string } = {}) {
  const { text = 'yes', ...rest } = more;
  const outcome = {
    kind: 'response' as const,
    statusCode: 200,
    requestId: 'req',
    body: Buffer.from(JSON.stringify({ text })),
  };
  const result: LineResult & { released: number } = {
    chunk: 0,
    line,
    succeeded: true,
    data: resultLine(batchId, line, Buffer.from(`"line-${line}"`), outcome),
    usage: {
      provider: 'p',
      model: 'm',
      input_tokens: 1,
      cached_tokens: 0,
      output_tokens: 2,
      reasoning_tokens: 0,
      cost: '0.1',
      price_version: 'v1',
    },
    released: 0,
    release() {
      result.released += 1;
    },
    ...rest,
  };
  return result;
}
