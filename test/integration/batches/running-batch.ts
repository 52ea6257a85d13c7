import { hash } from 'node:crypto';
import { Readable } from 'node:stream';
import { sql } from 'kysely';
import { afterAll, beforeAll } from 'vitest';
import { allQueues } from '#apps/platform/queues.ts';
import { batchModel, type BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { insertChunks, takeOverWork, type ChunkRow } from '#libs/batches/chunks/chunk.ts';
import { appendAndFollow, closeIfOver } from '#libs/batches/chunks/follow-status.ts';
import type { Held } from '#libs/batches/chunks/lane.ts';
import type { ClaimedChunk } from '#libs/batches/chunks/run-chunk.ts';
import { chunkKey } from '#libs/batches/chunks/stray-work.ts';
import { openTurn, turnToLines } from '#libs/batches/chunks/turns.ts';
import { resultLine } from '#libs/batches/results/result-line.ts';
import { ensureResultsPartition, resultsBucket } from '#libs/batches/results/results-bucket.ts';
import type { LineResult } from '#libs/batches/results/settle-groups.ts';
import { Settler, type BatchSettler } from '#libs/batches/results/settler.ts';
import { insertRows, toRows, type NewResult } from '#libs/batches/results/stored-results.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { batchLineId, newId } from '#libs/kernel/ids.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createJobQueue, type JobQueue } from '#libs/queue/job-queue.ts';
import type { TestDatabase } from '#test/postgres.ts';

export const silent = createLogger({ name: 'test', level: 'silent' });
const metadata = { actor: { type: 'system' as const, id: 'test' } };

/** A claim by a separate process. `id` names it in statements; `lose` tells the process that it was given up. */
export type Claim = Held<ClaimedChunk> & { id: ChunkRow & { holder: string }; lose: () => void };

/** What the transactions of batches need besides an event log. */
export const follow = (engine: { queue: JobQueue }) => ({ queue: engine.queue, releaseTarget: async () => {} });

/** Results of tests are small, so none of them needs a segment. */
export const noBlobs = { put: () => Promise.reject(new Error('no segment was expected')) };

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
  options: {
    lines: number;
    linesPerChunk?: number;
    workspaceId?: string;
    gatewayOptions?: Record<string, unknown>;
    inputRoot?: string;
  },
): Promise<string> {
  const { lines, linesPerChunk = lines, workspaceId = 'ws_1', gatewayOptions = {}, inputRoot } = options;
  const root = inputRoot === undefined ? {} : { input_root: inputRoot };
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
        gateway_options: gatewayOptions,
        headers: {},
      },
    },
    { type: 'batch.validated', data: { line_count: lines, chunk_count: chunkCount, model: 'm', ...root } },
  ];
  await engine.eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    const batch = await unit.append(batchModel, id, events);
    await openTurn(unit.tx, batch, null);
    const ranges = Array.from({ length: chunkCount }, (_value, chunk) => ({
      offset: 0,
      length: 1,
      firstLine: chunk * linesPerChunk + 1,
      lines: Math.min(linesPerChunk, lines - chunk * linesPerChunk),
    }));
    await insertChunks(unit.tx, id, ranges);
    await turnToLines(unit.tx, batch, chunkCount);
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

/** Claims a chunk that is ready, as a new process. Throws if it is not, or if its batch has no turn. */
export async function claimChunk({ db }: TestDatabase, id: string, chunk: number): Promise<Claim> {
  const processId = newId('process_');
  await db.insertInto('worker_process').values({ id: processId }).execute();
  const { rows } = await sql<ChunkRow>`
    with turn as (
      update batch_turn set ready = ready - 1 where batch_id = ${id} and work = 'lines' and not paused and ready > 0
      returning batch_id
    )
    update batch_chunk set state = 'held', holder = ${processId}, claim = claim + 1
    where batch_id = (select batch_id from turn) and chunk = ${chunk} and state = 'ready' returning *`.execute(db);
  const row = rows[0];
  if (row === undefined) throw new Error(`chunk ${chunk} of ${id} cannot be claimed`);
  const lost = new AbortController();
  return {
    work: { key: chunkKey(row), batchId: id, workspaceId: 'ws_1', chunk: row },
    holder: { id: processId, lost: lost.signal },
    freeSlot: () => true,
    id: { ...row, holder: processId },
    lose: () => lost.abort(),
  };
}

/** The process of a claim is given up: others can claim its work. It has not learned of it yet. */
export async function loseClaim({ db }: TestDatabase, { holder }: Pick<Claim, 'holder'>): Promise<void> {
  await db.transaction().execute(async (tx) => {
    await tx.deleteFrom('worker_process').where('id', '=', holder.id).execute();
    await takeOverWork(tx, holder.id);
  });
}

type Engine = { eventLog: EventLog; queue: JobQueue };

async function append(engine: Engine, id: string, events: BatchEvent[]): Promise<void> {
  await engine.eventLog.transact({ workspaceId: 'ws_1', streams: [id], metadata }, async (unit) => {
    const before = (await unit.load(batchModel, id)) as BatchRow;
    await appendAndFollow(follow(engine), unit, before, events);
  });
}

export const requestCancel = (engine: Engine, id: string): Promise<void> =>
  append(engine, id, [{ type: 'batch.cancel_requested', data: {} }]);

/** What `Batches.control` does. */
export async function control(engine: Engine, id: string, type: 'batch.paused' | 'batch.resumed'): Promise<void> {
  await append(engine, id, [{ type, data: {} }]);
}

/** What housekeeping does for a batch. */
export async function closeBatch(engine: Engine, id: string): Promise<void> {
  await engine.eventLog.transact({ workspaceId: 'ws_1', streams: [id], metadata }, async (unit) => {
    await closeIfOver(follow(engine), unit, (await unit.load(batchModel, id)) as BatchRow);
  });
}

/** A settler of a process that holds nothing. */
export function openSettler(engine: Engine, id: string): BatchSettler {
  const { signal } = new AbortController();
  return new Settler({
    ...engine,
    ...follow(engine),
    blobs: noBlobs,
    holder: () => ({ id: 'process_settling', lost: signal }),
    logger: silent,
    signal,
    finishSmallBatch: () => Promise.resolve(),
    remakePartition: () => Promise.resolve(),
  }).of({ id, workspaceId: 'ws_1' });
}

/** What happens ten minutes after a cancel or at the deadline, whatever is still running. */
export const closeLate = (engine: Engine, id: string, reason: 'cancelled' | 'expired' = 'cancelled'): Promise<void> =>
  append(engine, id, [{ type: 'batch.finalizing', data: { reason } }]);

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
    status: 200,
    failure: null,
    data: resultLine(batchLineId(batchId, line), Buffer.from(`"line-${line}"`), outcome),
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

/** Settles lines of a chunk. */
export async function settleLines(engine: Engine, id: string, lines: readonly number[], chunk = 0): Promise<void> {
  const settler = openSettler(engine, id);
  for (const line of lines) settler.add(lineResult(id, line, { chunk }));
  await settler.flush();
}

export type Row = Pick<NewResult, 'line' | 'status' | 'data'> & Partial<Pick<NewResult, 'failure'>>;

/** Stores results as a settle does, in groups of 64: in rows, or in a segment of a blob store. */
export async function storeResults(
  { db }: TestDatabase,
  batch: BatchRow,
  rows: readonly Row[],
  blobs?: BlobStore,
): Promise<void> {
  for (let from = 0; from < rows.length; from += 64) {
    let offset = 0;
    const group = rows.slice(from, from + 64).map(({ failure = null, ...row }) => {
      offset += row.data.length;
      return { ...row, failure, sha256: hash('sha256', row.data, 'buffer'), offset: offset - row.data.length };
    });
    const stored = await blobs?.put(Readable.from(group.map(({ data }) => data)));
    await insertRows(
      db,
      toRows(batch, group, { segment: stored?.blob ?? null, version: batch.version + 1 + from / 64 }),
    );
  }
}
