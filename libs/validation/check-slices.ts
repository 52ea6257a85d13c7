import { GatewayError } from '#libs/kernel/errors.ts';
import type { FileSlice } from './file-slices.ts';
import { forEachLine } from './json-lines.ts';
import { lineTooLong } from './lines/check-line.ts';
import type { SlicePool } from './slice-pool.ts';
import { createUsageSum } from './usage-sum.ts';
import { bytesPerLeaf, wordsPerDigest, type SliceResult, type SliceRules } from './slice-task.ts';

type Deps = {
  pool: SlicePool;
  rules: SliceRules;
  sliceTimeoutMs: number;
  lineTimeoutMs: number;
  /** How many lines can kill a thread before the check of the file ends. */
  deadlyLinesMax: number;
  signal: AbortSignal;
};

/** `complete` is false when the check ended inside the slice because too many lines killed a thread. */
export type CheckedSlice = { slice: FileSlice; result: SliceResult; complete: boolean };

/**
 * Checks slices in threads. When a thread dies or hangs, only its slice is repeated, line by line, and the line that
 * does it again gets an error (HOLD-9).
 */
export function createSliceChecker(deps: Deps): (slice: FileSlice) => Promise<CheckedSlice> {
  const { pool, rules, signal } = deps;
  let deadlyLines = 0;

  const checkOneByOne = async (slice: FileSlice, bytes: Buffer): Promise<CheckedSlice> => {
    const lines: { start: number; end: number; line: number }[] = [];
    let lineCount = 0;
    forEachLine(bytes, (start, end, blank) => {
      if (!blank) lines.push({ start, end, line: lineCount });
      lineCount += 1;
    });
    const results: SliceResult[] = [];
    for (const { start, end, line } of lines) {
      if (deadlyLines > deps.deadlyLinesMax) break;
      const task = { bytes: bytes.subarray(start, end), rules, withCustomIds: false };
      const result = await pool.run(task, deps.lineTimeoutMs, signal);
      results.push(movedTo(result ?? deadlyLine(end - start), start, line));
      if (result !== null) continue;
      deadlyLines += 1;
      await revive();
    }
    return { slice, result: joined(results, lineCount), complete: results.length === lines.length };
  };

  /**
   * Starts a thread with a harmless line, so that the start does not count towards the time of the next line. This also
   * distinguishes a file that kills threads from threads that do not work at all.
   */
  const revive = async (): Promise<void> => {
    const task = { bytes: Buffer.from('{}'), rules, withCustomIds: false };
    if ((await pool.run(task, deps.sliceTimeoutMs, signal)) !== null) return;
    throw new GatewayError('unavailable', null, 'The validation threads could not be started. Try again.');
  };

  return async (slice) => {
    if (slice.kind === 'long_line') return { slice, result: longLine(slice.lengthBytes, rules), complete: true };
    const task = { bytes: slice.bytes, rules, withCustomIds: false };
    const result = await pool.check(task, deps.sliceTimeoutMs, signal);
    if (result !== null) return { slice, result, complete: true };
    const { buffer, byteOffset, byteLength } = slice.bytes;
    await revive();
    return checkOneByOne(slice, Buffer.from(buffer, byteOffset, byteLength));
  };
}

function oneLine(lengthBytes: number, error: { code: string; message: string; param: string | null }): SliceResult {
  return {
    lineCount: 1,
    ranges: Uint32Array.of(0, lengthBytes, 0),
    digests: new Uint32Array(wordsPerDigest),
    leaves: new Uint8Array(bytesPerLeaf),
    errors: [{ line: 0, ...error }],
    errorCount: 1,
    model: null,
    prompts: [],
    usage: [],
    timeouts: 0,
    customIds: [],
  };
}

function longLine(lengthBytes: number, { lineBytesMax }: SliceRules): SliceResult {
  return oneLine(lengthBytes, lineTooLong(lengthBytes, lineBytesMax));
}

function deadlyLine(lengthBytes: number): SliceResult {
  const message = 'This request takes too much time or memory to check. Simplify it.';
  return oneLine(lengthBytes, { code: 'invalid_request', message, param: 'body' });
}

/** Converts the result of a line that was checked separately to its position in the slice. */
function movedTo(result: SliceResult, start: number, line: number): SliceResult {
  const [from = 0, to = 0] = result.ranges;
  return {
    ...result,
    ranges: result.ranges.length === 0 ? result.ranges : Uint32Array.of(start + from, start + to, line),
    errors: result.errors.map((error) => ({ ...error, line })),
  };
}

function joined(results: SliceResult[], lineCount: number): SliceResult {
  const models = new Set(results.map((result) => result.model));
  const [model = null] = models.size === 1 ? models : [];
  const usage = createUsageSum();
  for (const result of results) usage.addAll(result.usage);
  return {
    lineCount,
    usage: usage.take(),
    ranges: Uint32Array.from(results.flatMap((result) => [...result.ranges])),
    digests: Uint32Array.from(results.flatMap((result) => [...result.digests])),
    leaves: Buffer.concat(results.map((result) => result.leaves)),
    errors: results.flatMap((result) => result.errors),
    errorCount: results.reduce((sum, result) => sum + result.errorCount, 0),
    model,
    prompts: [...new Set(results.flatMap((result) => result.prompts))],
    timeouts: results.reduce((sum, result) => sum + result.timeouts, 0),
    customIds: [],
  };
}
