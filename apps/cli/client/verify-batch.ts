import { hash } from 'node:crypto';
import { CliError } from './cli-error.ts';
import { readThrough } from './download.ts';
import type { Client } from './http-client.ts';
import { hasEnded, type Batch } from './watch-batch.ts';

/** How the files of a batch compare. The last four are 0 where every line of the input has one result. */
export type BatchCheck = {
  batch_id: string;
  equal: boolean;
  input_lines: number;
  output_lines: number;
  error_lines: number;
  /** Lines of the input without a result. */
  missing: number;
  /** Results of a line that has one already. */
  repeated: number;
  /** Results of no line of the input. */
  unknown: number;
  /** By how many lines the files differ from what the batch says. */
  miscounted: number;
};

/** A line of a result may have a whole answer in it, and the input of a large batch is read beside it. */
const lineBytesMax = 64 * 1_048_576;
/** An id is kept as a number of 48 bits, about 40 bytes of memory a line. */
const linesMax = 5_000_000;

/**
 * Compares the files of a batch that has ended: each line of the input must be in exactly one of output and error file, and
 * the batch must count them so. Every file is checked by its SHA-256. Throws CliError for a batch that has not ended or whose
 * files are gone.
 */
export async function verifyBatch(client: Client, batch: Batch, signal: AbortSignal): Promise<BatchCheck> {
  if (!hasEnded(batch) || batch.status === 'failed') {
    throw new CliError(`The batch is ${batch.status}, so there are no results to verify.`);
  }
  // Each line of the input is `false` until its result was seen.
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
  check.equal = check.missing + check.repeated + check.unknown + check.miscounted === 0;
  return check;
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
    if (lines > linesMax) throw new CliError(`${fileId} has more than ${linesMax} lines, too many to compare here.`);
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
    if (restBytes > lineBytesMax) throw new CliError(`A line of ${fileId} has more than 64 MiB.`);
  };
  await readThrough(client, fileId, onPiece, signal);
  onLine(Buffer.concat(rest));
  return lines;
}
