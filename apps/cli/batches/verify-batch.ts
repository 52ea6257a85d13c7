import { hash } from 'node:crypto';
import { compareResults, type ResultsCheck, type SettledEvent } from '#libs/batches/look/compare-results.ts';
import { ApiError, CliError } from '../server/cli-error.ts';
import { readThrough } from './download.ts';
import { readPieces, type Client } from '../server/http-client.ts';
import { note } from '../terminal/output.ts';
import { hasEnded, type Batch } from './watch-batch.ts';

/**
 * The result of comparing the files of a batch. `missing` to `miscounted` are 0 if every line of the input has one result.
 */
export type BatchCheck = {
  batch_id: string;
  equal: boolean;
  input_lines: number;
  output_lines: number;
  error_lines: number;
  /** Lines of the input without a result. */
  missing: number;
  /** Results of a line that already has one. */
  repeated: number;
  /** Results that belong to no line of the input. */
  unknown: number;
  /** The number of lines by which the files differ from the counts of the batch. */
  miscounted: number;
  /**
   * The number of the batch's events whose `results_root` matches their lines in the files; null: the key cannot read
   * events.
   */
  roots: number | null;
  /** Differences from the events. */
  violations: string[];
};

/** A result line can contain a whole answer. */
const lineBytesMax = 64 * 1_048_576;
/** An ID is stored as a 48-bit number, which takes about 40 bytes of memory per line. */
const linesMax = 5_000_000;

/**
 * Compares the files of a batch that has ended: each line of the input must be in exactly one of the output and error files,
 * the batch's counts must match, and each event that settled lines must have the root of their bytes. The SHA-256 of every
 * file is checked. Throws CliError for a batch that has not ended or whose files were deleted.
 */
export async function verifyBatch(client: Client, batch: Batch, signal: AbortSignal): Promise<BatchCheck> {
  if (!hasEnded(batch) || batch.status === 'failed') {
    throw new CliError(`The batch is ${batch.status}, so there are no results to verify.`);
  }
  // The value for each line of the input is `false` until its result has been found.
  const lines = new Map<number, boolean>();
  const check: BatchCheck = {
    batch_id: batch.id,
    equal: false,
    input_lines: await eachId(client, batch.input_file_id, signal, (id) => void lines.set(id, false)),
    output_lines: 0,
    error_lines: 0,
    missing: 0,
    repeated: 0,
    unknown: 0,
    miscounted: 0,
    roots: null,
    violations: [],
  };
  const onResult = (id: number): void => {
    const wasSeen = lines.get(id);
    if (wasSeen === undefined) check.unknown += 1;
    else if (wasSeen) check.repeated += 1;
    lines.set(id, true);
  };
  check.output_lines = await eachId(client, batch.output_file_id, signal, onResult);
  check.error_lines = await eachId(client, batch.error_file_id, signal, onResult);
  for (const wasSeen of lines.values()) if (!wasSeen) check.missing += 1;
  const { total, completed } = batch.request_counts;
  check.miscounted = Math.abs(total - check.input_lines) + Math.abs(completed - check.output_lines);
  const compared = await compareWithEvents(client, batch, signal);
  if (compared === null) note('The key lacks the scope audit.read, so the files were not compared with the events.');
  else [check.roots, check.violations] = [compared.settles, compared.violations];
  const differences = check.missing + check.repeated + check.unknown + check.miscounted + check.violations.length;
  check.equal = differences === 0;
  return check;
}

const eventsMax = 1_000_000;

/** Whether each event that settled lines has their root and counts. null: the key cannot read events. */
async function compareWithEvents(client: Client, batch: Batch, signal: AbortSignal): Promise<ResultsCheck | null> {
  type Event = { id: string; stream_version: number; data: SettledEvent['data'] };
  const { id, request_counts: counts, output_file_id, error_file_id } = batch;
  const query = { stream: id, type: 'batch.lines_settled' };
  let events: Event[];
  try {
    events = await client.list<Event>('/v1/events', query, eventsMax);
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return null;
    throw error;
  }
  return await compareResults({
    batch: { id, total: counts.total, output_file_id, error_file_id },
    events: events.map(({ stream_version: version, data }) => ({ version, data })),
    async readFile(fileId) {
      const response = await client.open('GET', `/v1/files/${fileId}/content`, { signal });
      return buffersOf(readPieces(response, client.server));
    },
  });
}

async function* buffersOf(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  for await (const piece of pieces) yield Buffer.from(piece.buffer, piece.byteOffset, piece.length);
}

/** Calls `onId` for the custom_id of each line, as a number; returns the number of lines that are not blank. */
async function eachId(
  client: Client,
  fileId: string | null,
  signal: AbortSignal,
  onId: (id: number) => void,
): Promise<number> {
  if (fileId === null) return 0;
  let lines = 0;
  let rest: Uint8Array[] = [];
  let restBytes = 0;
  const onLine = (line: Buffer): void => {
    const text = line.toString('utf8').trim();
    if (text === '') return;
    lines += 1;
    if (lines > linesMax) throw new CliError(`${fileId} has more than ${linesMax} lines, too many to compare.`);
    const { custom_id: id } = JSON.parse(text) as { custom_id: string };
    onId(hash('sha256', id, 'buffer').readUIntBE(0, 6));
  };
  const onPiece = (piece: Uint8Array): void => {
    let from = 0;
    for (let end = piece.indexOf(10); end !== -1; end = piece.indexOf(10, from)) {
      onLine(Buffer.concat([...rest, piece.subarray(from, end)]));
      [rest, restBytes, from] = [[], 0, end + 1];
    }
    rest.push(piece.subarray(from));
    restBytes += piece.length - from;
    if (restBytes > lineBytesMax) throw new CliError(`A line of ${fileId} is larger than 64 MiB.`);
  };
  await readThrough(client, fileId, onPiece, signal);
  onLine(Buffer.concat(rest));
  return lines;
}
