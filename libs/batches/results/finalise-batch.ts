import { sql, type Kysely } from 'kysely';
import type { BlobStore, BlobWriter, StoredBlob } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import { newId } from '#libs/kernel/ids.ts';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { decideBatch, type BatchOutcome } from '../batch.ts';
import { batchModel, type BatchRow } from '../batch-model.ts';
import { appendAndFollow, type FollowDeps } from '../chunks/follow-status.ts';
import { resultLine, unansweredMessages } from './result-line.ts';
import { resultsBucket } from './results-bucket.ts';
import { scanRequests } from './scan-requests.ts';

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
// parts. (A byte of a page takes four bytes of memory: as hexadecimal text from the driver, as bytes, and in the joined
// page.)
const pageMax = { lines: 512, bytes: 2 * 1_048_576 };

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
    await writeLines({ ...deps, needsInput: retries < retriesWithoutInput }, batch, files, signal);
    const unanswered = files.error.lines() - batch.failed;
    if (files.output.lines() !== batch.completed || files.output.lines() + files.error.lines() !== batch.total) {
      throw new Error(
        `batch ${batchId}: ${files.output.lines()} output and ${files.error.lines()} error lines do not fit the counts ` +
          `${batch.completed} completed, ${batch.failed} failed, ${batch.total} in total`,
      );
    }
    const [output, error] = [await files.output.commit(), await files.error.commit()];
    deps.logger.info(
      { batch_id: batchId, completed: batch.completed, failed: batch.failed, unanswered },
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

async function writeLines(
  deps: Deps & { needsInput: boolean },
  batch: BatchRow,
  files: { output: ResultFile; error: ResultFile },
  signal: AbortSignal,
): Promise<void> {
  for (let first = 1; first <= batch.total;) {
    signal.throwIfAborted();
    const { rows, end } = await readPage(deps.db, batch, first);
    const byLine = new Map(rows.map((row) => [row.line, row]));
    const missing = Array.from({ length: end - first }, (_value, index) => first + index).filter(
      (line) => !byLine.has(line),
    );
    const unanswered = missing.length === 0 ? null : await unansweredLines(deps, batch, missing);
    const page: { output: Buffer[]; error: Buffer[] } = { output: [], error: [] };
    const writePage = async (): Promise<void> => {
      await files.output.write(page.output.splice(0));
      await files.error.write(page.error.splice(0));
    };
    for (let line = first; line < end; line += 1) {
      const row = byLine.get(line);
      const kind = row?.succeeded === true ? 'output' : 'error';
      const data = row ? row.data : (unanswered?.get(line) as Buffer);
      if (data !== null) page[kind].push(data);
      else {
        await writePage();
        await files[kind].writeParts(readParts(deps.db, batch, line));
      }
    }
    await writePage();
    first = end;
  }
}

/** `data` is null when the result is larger than a page. */
type ResultRow = { line: number; succeeded: boolean; data: Buffer | null };

/** The rows of the lines from `first` up to, not including, `end`: at most one page. */
async function readPage(
  db: Kysely<Database>,
  batch: BatchRow,
  first: number,
): Promise<{ rows: ResultRow[]; end: number }> {
  const end = Math.min(first + pageMax.lines, batch.total + 1);
  // octet_length does not read the value, because it is stored uncompressed and out of line.
  const { rows } = await sql<ResultRow & { page_rows: number }>`
    select line, succeeded, data, page_rows from (
      select line, succeeded, count(*) over ()::int as page_rows,
        case when octet_length(data) <= ${pageMax.bytes} then data end as data,
        sum(octet_length(data)) over (order by line) - octet_length(data) as bytes_before
      from batch_result
      where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} and line >= ${first} and line < ${end}
    ) as page
    where bytes_before < ${pageMax.bytes}
    order by line`.execute(db);
  const last = rows.at(-1);
  const isCut = last !== undefined && rows.length < last.page_rows;
  return { rows, end: isCut ? last.line + 1 : end };
}

/**
 * Reads the result of one line in parts of one page each. Reading a result of 60 MB in one piece would take four times
 * as much memory.
 */
async function* readParts(db: Kysely<Database>, batch: BatchRow, line: number): AsyncGenerator<Buffer> {
  for (let from = 1; ; from += pageMax.bytes) {
    const { rows } = await sql<{ part: Buffer }>`
      select substring(data from ${from}::int for ${pageMax.bytes}::int) as part from batch_result
      where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} and line = ${line}`.execute(db);
    const part = rows[0]?.part;
    if (part === undefined) throw new Error(`batch ${batch.id} has lost the result of line ${line}`);
    if (part.length > 0) yield part;
    if (part.length < pageMax.bytes) return;
  }
}

/** Error lines for requests that were never executed, with the custom_id of the input. */
async function unansweredLines(
  deps: Deps & { needsInput: boolean },
  batch: BatchRow,
  missing: readonly number[],
): Promise<Map<number, Buffer>> {
  const code = batch.finalizing_reason === 'expired' ? 'batch_expired' : 'batch_cancelled';
  const wanted = new Set(missing);
  const lines = new Map<number, Buffer>();
  const add = (line: number, customId: Buffer): void => {
    lines.set(line, resultLine(batch.id, line, customId, { kind: 'error', code, message: unansweredMessages[code] }));
  };
  const window = { first: missing[0] as number, end: (missing.at(-1) as number) + 1 };
  try {
    while (window.first < window.end) {
      window.first = await scanRequests(deps, batch, window, ({ line, bytes }) => {
        if (wanted.has(line)) add(line, memberValue(bytes, 'custom_id') ?? nullText);
      });
    }
  } catch (error) {
    if (deps.needsInput || !isLost(error)) throw error;
    deps.logger.error(
      { err: error, batch_id: batch.id },
      'lines are written without custom_id because the input file was lost',
    );
    for (const line of missing) if (!lines.has(line)) add(line, nullText);
  }
  return lines;
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
  const streams = [batch.id, ids.output, ids.error].filter((id) => id !== null);
  const metadata = { actor: { type: 'system' as const, id: 'worker' } };
  return await deps.eventLog.transact({ workspaceId: batch.workspace_id, streams, metadata }, async (unit) => {
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
