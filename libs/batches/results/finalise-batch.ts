import { createHash, hash } from 'node:crypto';
import type { Kysely } from 'kysely';
import type { BlobStore, BlobWriter, StoredBlob } from '#libs/blobs/blob-store.ts';
import { isDatabaseTrouble } from '#libs/database/database-error.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import type { Database } from '#libs/database/schema.ts';
import { byWorker } from '#libs/event-log/by-worker.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import { batchLineId, newId } from '#libs/kernel/ids.ts';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createShortPieces } from '#libs/kernel/sharing/short-pieces.ts';
import { decideBatch, type BatchOutcome } from '../batch/batch.ts';
import { batchModel, type BatchRow } from '../batch/batch-model.ts';
import { appendAndFollow, type FollowDeps } from '../chunks/follow-status.ts';
import { isSuccess, resultLine, unansweredLine, unansweredMessages } from './result-line.ts';
import { scanRequests } from './scan-requests.ts';
import { listResults, pieceBytesMax, readParts, readResults, type StoredResult } from './stored-results.ts';

type Deps = FollowDeps & {
  db: Kysely<Database>;
  eventLog: EventLog;
  blobs: BlobStore;
  inputBlob: (batch: BatchRow) => Promise<string>;
  /** Appends `file.uploaded` for an output or error file, in the terminal transaction. */
  recordFile: (
    unit: UnitOfWork,
    file: { id: string; filename: string; blob: StoredBlob; expiresAfterSeconds: number | null },
  ) => Promise<void>;
  logger: Logger;
};

// Results are read in pages: many small answers or a few large ones. A result that is larger than a page is read in
// parts.
const pageMax = { lines: 4_096, bytes: pieceBytesMax };
/** What is written at a time, and hashed without a pause. */
const writtenBytesMax = 262_144;

/**
 * Writes every line of a `finalizing` batch, in input order, to the output or the error file, lines without a result as
 * `batch_cancelled` or `batch_expired`, and then, in one transaction, the files and the terminal event. Running it twice
 * is harmless: the first transaction wins, and the blobs of the second run are swept.
 */
export async function finaliseBatch(
  deps: Deps,
  batch: BatchRow,
  signal: AbortSignal,
  /** How often it was tried before. */
  retries = 0,
): Promise<BatchRow> {
  if (batch.status !== 'finalizing') return batch;
  const batchId = batch.id;
  const files = { output: createResultFile(deps.blobs), error: createResultFile(deps.blobs) };
  try {
    const lost = await writeLines(
      { ...deps, needsInput: retries < retriesWithoutInput, needsResults: retries < retriesWithoutResults },
      batch,
      files,
      signal,
    );
    const unanswered = files.error.lines() - batch.failed - lost;
    if (files.output.lines() + lost !== batch.completed || files.output.lines() + files.error.lines() !== batch.total) {
      throw new Error(
        `batch ${batchId}: ${files.output.lines()} output and ${files.error.lines()} error lines do not fit the counts ` +
          `${batch.completed} completed, ${batch.failed} failed, ${batch.total} in total`,
      );
    }
    const [output, error] = [await files.output.commit(), await files.error.commit()];
    deps.logger.info(
      { batch_id: batchId, completed: batch.completed, failed: batch.failed, unanswered, lost },
      'batch files written',
    );
    return await finish(deps, batch, { output, error });
  } catch (error) {
    await files.output.abort();
    await files.error.abort();
    throw error;
  }
}

type ResultFile = {
  write(lines: readonly Buffer[]): Promise<void>;
  /** Writes one line that is given in parts. */
  writeParts(parts: AsyncIterable<Buffer>): Promise<void>;
  lines(): number;
  /** Null when no line was written: like OpenAI, a file without lines is not created. */
  commit(): Promise<StoredBlob | null>;
  abort(): Promise<void>;
};

const lineEnd = Buffer.from('\n');

function createResultFile(blobs: BlobStore): ResultFile {
  let writer: BlobWriter | undefined;
  let count = 0;
  return {
    async write(lines) {
      if (lines.length === 0) return;
      writer ??= await blobs.openWriter();
      const bytes = Buffer.concat(lines.flatMap((line) => [line, lineEnd]));
      countTransferred(bytes.length);
      await writer.write(bytes);
      count += lines.length;
    },
    async writeParts(parts) {
      writer ??= await blobs.openWriter();
      for await (const part of parts) {
        countTransferred(part.length);
        await writer.write(part);
      }
      await writer.write(lineEnd);
      count += 1;
    },
    lines: () => count,
    commit: async () => (writer ? await writer.commit() : null),
    abort: async () => await writer?.abort(),
  };
}

/** From this retry on, lines without a result are written without their custom_id if the input file is lost. */
const retriesWithoutInput = 2;
/** From this retry on, a few minutes after the first one, lines whose result is lost are written as errors. */
const retriesWithoutResults = 30;

const readRetryMs = 1_000;

/** Returns how many answers of completed lines were lost. */
async function writeLines(
  deps: Deps & { needsInput: boolean; needsResults: boolean },
  batch: BatchRow,
  files: { output: ResultFile; error: ResultFile },
  signal: AbortSignal,
): Promise<number> {
  let lost = 0;
  const pause = createShortPieces();
  const again = <Result>(read: () => Promise<Result>): Promise<Result> =>
    retryDuringOutage(read, {
      delayMs: readRetryMs,
      isOutage: isDatabaseTrouble,
      signal,
      onRetry: (error) => deps.logger.warn({ err: error, batch_id: batch.id }, 'files are waiting for the database'),
    });
  for (let first = 1; first <= batch.total;) {
    signal.throwIfAborted();
    const windowEnd = Math.min(first + pageMax.lines, batch.total + 1);
    const stored = await again(() => listResults(deps.db, batch, { first, end: windowEnd }));
    const { results, end } = cutPage(stored, windowEnd);
    const byLine = new Map(results.map((result) => [result.line, result]));
    const missing = Array.from({ length: end - first }, (_value, index) => first + index).filter(
      (line) => !byLine.has(line),
    );
    const customIds = missing.length === 0 ? null : await findCustomIds(deps, batch, missing, pause);
    const small = results.filter(({ bytes }) => bytes <= pageMax.bytes);
    const read = await again(() => readOrLose(deps, batch, small, pause));
    for (const { line, bytes, place } of results) {
      if (deps.needsResults || bytes <= pageMax.bytes || !('segment' in place)) continue;
      if ((await deps.blobs.sizeOf(place.segment)) === null) read.set(line, lostResult);
    }
    const page: { output: Buffer[]; error: Buffer[] } = { output: [], error: [] };
    let pageBytes = 0;
    const writePage = async (): Promise<void> => {
      pageBytes = 0;
      await files.output.write(page.output.splice(0));
      await files.error.write(page.error.splice(0));
    };
    for (let line = first; line < end; line += 1) {
      const result = byLine.get(line);
      const kind = result !== undefined && isSuccess(result.status) ? 'output' : 'error';
      const data = result ? read.get(line) : unansweredLine(batch, line, customIds?.get(line));
      if (data === lostResult) {
        lost += kind === 'output' ? 1 : 0;
        const error = { kind: 'error' as const, code: 'result_lost', message: unansweredMessages.result_lost };
        page.error.push(resultLine(batchLineId(batch.id, line), nullText, error));
      } else if (data !== undefined) {
        page[kind].push(data);
        pageBytes += data.length;
        if (pageBytes >= writtenBytesMax) await writePage();
      } else {
        await writePage();
        await files[kind].writeParts(readChecked(deps, batch, result as StoredResult));
      }
      await pause();
    }
    await writePage();
    first = end;
  }
  return lost;
}

/** The results that fit a page, and the end of its lines. */
function cutPage(
  stored: readonly StoredResult[],
  windowEnd: number,
): { results: readonly StoredResult[]; end: number } {
  let bytes = 0;
  for (const [index, result] of stored.entries()) {
    if (bytes >= pageMax.bytes) return { results: stored.slice(0, index), end: result.line };
    bytes += result.bytes;
  }
  return { results: stored, end: windowEnd };
}

const lostResult = Symbol('lost result');

/**
 * Reads results and checks that they are those that were settled. After some retries, those that are damaged or whose
 * segment is missing are given up.
 */
async function readOrLose(
  deps: Deps & { needsResults: boolean },
  batch: BatchRow,
  results: readonly StoredResult[],
  pause: () => Promise<void>,
): Promise<Map<number, Buffer | typeof lostResult>> {
  const found = new Map<number, Buffer | typeof lostResult>();
  try {
    for (const [line, data] of await readResults(deps, batch, results)) found.set(line, data);
  } catch (error) {
    if (deps.needsResults || !isLost(error)) throw error;
    if (results.length > 1) {
      for (const result of results)
        for (const [line, data] of await readOrLose(deps, batch, [result], pause)) found.set(line, data);
      return found;
    }
  }
  for (const { line, sha256 } of results) {
    await pause();
    const data = found.get(line);
    if (data instanceof Buffer && hash('sha256', data, 'buffer').equals(sha256)) continue;
    if (deps.needsResults) throw new Error(`batch ${batch.id}: the stored result of line ${line} is damaged`);
    deps.logger.error({ batch_id: batch.id, line }, 'the result of a line was lost');
    found.set(line, lostResult);
  }
  return found;
}

/** Reads a large result in parts, and checks it after the last one. */
async function* readChecked(deps: Deps, batch: BatchRow, result: StoredResult): AsyncGenerator<Buffer> {
  const digest = createHash('sha256');
  for await (const part of readParts(deps, batch, result)) {
    digest.update(part);
    yield part;
  }
  if (!digest.digest().equals(result.sha256))
    throw new Error(`batch ${batch.id}: the stored result of line ${result.line} is damaged`);
}

/** The custom_ids of requests that were never executed, as raw JSON text. */
async function findCustomIds(
  deps: Deps & { needsInput: boolean },
  batch: BatchRow,
  missing: readonly number[],
  pause: () => Promise<void>,
): Promise<Map<number, Buffer>> {
  const wanted = new Set(missing);
  const customIds = new Map<number, Buffer>();
  const window = { first: missing[0] as number, end: (missing.at(-1) as number) + 1 };
  try {
    while (window.first < window.end) {
      window.first = await scanRequests(deps, batch, window, async ({ line, bytes }) => {
        await pause();
        const customId = wanted.has(line) ? memberValue(bytes, 'custom_id') : undefined;
        if (customId !== undefined) customIds.set(line, Buffer.from(customId));
      });
    }
  } catch (error) {
    if (deps.needsInput || !isLost(error)) throw error;
    deps.logger.error(
      { err: error, batch_id: batch.id },
      'lines are written without custom_id because the input file was lost',
    );
  }
  return customIds;
}

const nullText = Buffer.from('null');

const isLost = (error: unknown): boolean => error instanceof GatewayError && error.code === 'blob_not_found';

async function finish(
  deps: Deps,
  batch: BatchRow,
  blobs: { output: StoredBlob | null; error: StoredBlob | null },
): Promise<BatchRow> {
  const ids = { output: blobs.output && newId('file-'), error: blobs.error && newId('file-') };
  const outcome: BatchOutcome = {
    output_file_id: ids.output,
    output_sha256: blobs.output?.sha256 ?? null,
    error_file_id: ids.error,
    error_sha256: blobs.error?.sha256 ?? null,
    total: batch.total,
    completed: batch.completed,
    failed: batch.failed,
  };
  const newStreams = [ids.output, ids.error].filter((id) => id !== null);
  // The files are part of the work on the batch.
  const metadata = byWorker(batch);
  const command = { workspaceId: batch.workspace_id, streams: [batch.id, ...newStreams], newStreams, metadata };
  return await deps.eventLog.transact({ ...command, model: batchModel }, async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    const events = decideBatch(state, { type: 'finish', outcome }, unit.now);
    if (events.length === 0) return state;
    for (const kind of ['output', 'error'] as const) {
      const [id, blob] = [ids[kind], blobs[kind]];
      if (!id || !blob) continue;
      const filename = `${batch.id}_${kind}.jsonl`;
      await deps.recordFile(unit, { id, filename, blob, expiresAfterSeconds: batch.output_expires_after_seconds });
    }
    return await appendAndFollow(deps, unit, state, events);
  });
}
