import type { BatchError } from '#libs/contracts/batches.ts';
import type { ValidationInput, ValidationLimits, ValidationResult } from './batch-file-validator.ts';
import { createSliceChecker, type CheckedSlice } from './check-slices.ts';
import { createChunkTable } from './chunk-table.ts';
import { createDuplicateFinder, type DuplicateLine } from './duplicate-finder.ts';
import { createErrorList } from './error-list.ts';
import { sliceFile, type FileSlice } from './file-slices.ts';
import { inOrder } from './in-order.ts';
import { readLinesAt } from './read-lines-at.ts';
import { createSharedBuffers } from './shared-buffers.ts';
import type { SlicePool } from './slice-pool.ts';
import { wordsPerDigest, wordsPerRange, type SliceRules } from './slice-task.ts';

type Deps = { pool: SlicePool; limits: ValidationLimits; temporaryDirectory: string; slicesInFlight: number };

/** See BatchFileValidator.validate. */
export async function validateFile(input: ValidationInput, deps: Deps): Promise<ValidationResult> {
  const { pool, limits } = deps;
  const { endpoint, hasDefaultTarget, virtualKeys, unable } = input;
  const rules: SliceRules = { ...limits, endpoint, hasDefaultTarget, virtualKeys, unable };
  const ended = new AbortController(); // Stops what is still in flight when the check ends early.
  const signal = input.signal === undefined ? ended.signal : AbortSignal.any([input.signal, ended.signal]);
  const { sliceTimeoutMs, lineTimeoutMs, costlyLinesMax, lineBytesMax, sliceBytes } = limits;
  const check = createSliceChecker({
    pool,
    rules,
    sliceTimeoutMs,
    lineTimeoutMs,
    deadlyLinesMax: costlyLinesMax,
    signal,
  });
  const buffers = createSharedBuffers(limits);
  const findings = createFindings(input, deps);
  try {
    input.signal?.throwIfAborted();
    const slices = sliceFile(input.open(), {
      sliceBytes,
      lineBytesMax,
      allocate: (sizeBytes) => buffers.take(sizeBytes),
    });
    for await (const checked of inOrder(slices, check, deps.slicesInFlight)) {
      input.signal?.throwIfAborted();
      const goOn = findings.add(checked);
      await findings.flush();
      if (checked.slice.kind === 'lines') buffers.recycle(checked.slice.bytes);
      input.onProgress?.({ bytes: endOf(checked.slice), lines: findings.lineCount() });
      if (!goOn) break;
    }
    const { duplicates, count } = await findings.finishDuplicates();
    const customIds = await readCustomIds(input, duplicates, { pool, rules, sliceTimeoutMs, signal });
    return findings.conclude(duplicates, count, customIds);
  } finally {
    ended.abort(new Error('the check of the file has ended'));
    await findings.dispose();
  }
}

const endOf = (slice: FileSlice): number =>
  slice.offset + (slice.kind === 'lines' ? slice.bytes.length : slice.lengthBytes);

/** Collects what the slices, in order, bring. */
function createFindings(input: ValidationInput, { limits, temporaryDirectory }: Deps) {
  const table = createChunkTable(input);
  const errors = createErrorList(limits.errorsMax);
  const duplicateFinder = createDuplicateFinder({
    inMemoryMax: limits.digestsInMemoryMax,
    directory: temporaryDirectory,
    firstMax: limits.errorsMax,
  });
  let fileError: BatchError | null = null;
  let linesBefore = 0;
  let timeouts = 0;
  let model: string | null | undefined;

  const addLines = ({ slice, result }: CheckedSlice): boolean => {
    const { ranges, digests } = result;
    for (let at = 0, digest = 0; at < ranges.length; at += wordsPerRange, digest += wordsPerDigest) {
      if (input.linesMax !== null && table.lineCount() === input.linesMax) return false;
      const start = slice.offset + (ranges[at] ?? 0);
      table.add(start, slice.offset + (ranges[at + 1] ?? 0));
      if (hasDigest(digests, digest))
        duplicateFinder.add(digests, digest, linesBefore + (ranges[at + 2] ?? 0) + 1, start);
    }
    return true;
  };

  return {
    lineCount: table.lineCount,
    /** False when there is no point in going on. */
    add(checked: CheckedSlice): boolean {
      const { slice, result } = checked;
      if (slice.offset === 0 && slice.kind === 'lines') {
        fileError = isUtf16(slice.bytes) ? notUtf8 : isArray(slice.bytes) ? notLines : null;
        if (fileError !== null) return false;
      }
      const withinMax = addLines(checked);
      for (const { line, ...problem } of result.errors) errors.add({ ...problem, line: linesBefore + line + 1 });
      errors.addUncounted(result.errorCount - result.errors.length);
      if (result.ranges.length > 0) model = model === undefined || model === result.model ? result.model : null;
      linesBefore += result.lineCount;
      timeouts += result.timeouts;
      if (!withinMax) fileError = tooManyTasks(input.linesMax ?? 0);
      else if (!checked.complete || timeouts > limits.costlyLinesMax) fileError = tooCostly(linesBefore);
      return fileError === null;
    },
    flush: () => duplicateFinder.flush(),
    dispose: () => duplicateFinder.dispose(),
    async finishDuplicates(): Promise<{ duplicates: DuplicateLine[]; count: number }> {
      const { first, count } = await duplicateFinder.finish();
      return { duplicates: first, count };
    },
    conclude(duplicates: DuplicateLine[], count: number, customIds: Map<number, string>): ValidationResult {
      for (const { line, offset } of duplicates) errors.add(duplicateError(line, customIds.get(offset) ?? ''));
      errors.addUncounted(count - duplicates.length);
      const lineCount = table.lineCount();
      if (lineCount === 0 && fileError === null) fileError = emptyFile;
      const all = [...(fileError === null ? [] : [fileError]), ...errors.take()];
      if (all.length > 0) return { valid: false, lineCount, errors: all };
      return { valid: true, lineCount, chunks: table.chunks(), model: model ?? null };
    },
  };
}

function hasDigest(digests: Uint32Array, at: number): boolean {
  return digests[at] !== 0 || digests[at + 1] !== 0 || digests[at + 2] !== 0 || digests[at + 3] !== 0;
}

/** By its byte order mark, or by the zero that half of ASCII's bytes are: no JSON text in UTF-8 holds one. */
function isUtf16([first, second]: Uint8Array): boolean {
  return (first === 0xff && second === 0xfe) || (first === 0xfe && second === 0xff) || first === 0 || second === 0;
}

/**
 * Whether the file is one JSON array: `[` begins it and is not closed in its line, or that line is all there is. Each line
 * of such a file would have its error, up to the cap.
 */
function isArray(bytes: Uint8Array): boolean {
  const first = bytes.findIndex((byte) => !meaningless.has(byte));
  if (bytes[first] !== 0x5b) return false;
  const lineEnd = bytes.indexOf(0x0a, first);
  if (lineEnd === -1) return true;
  const last = bytes.subarray(first, lineEnd).findLast((byte) => !meaningless.has(byte));
  return last !== 0x5d || bytes.subarray(lineEnd).every((byte) => meaningless.has(byte));
}

/** White space, and the bytes of a byte order mark. */
const meaningless: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d, 0xef, 0xbb, 0xbf]);

const emptyFile: BatchError = {
  code: 'empty_file',
  message: 'The input file is empty. Please ensure that the batch contains at least one request.',
  param: null,
  line: null,
};

const notUtf8: BatchError = {
  code: 'invalid_request',
  message: 'Invalid file for Batch API. Must be utf-8 encoded',
  param: null,
  line: null,
};

const notLines: BatchError = {
  code: 'invalid_json_line',
  message:
    "The file begins with '[', as a JSON array does. A batch file is JSON Lines: write one JSON object per line, " +
    'without brackets around them and commas between them.',
  param: null,
  line: 1,
};

const tooManyTasks = (linesMax: number): BatchError => ({
  code: 'too_many_tasks',
  message: `The input file has more than the allowed ${linesMax} requests. Split it into several batches.`,
  param: null,
  line: null,
});

const tooCostly = (lines: number): BatchError => ({
  code: 'validation_stopped',
  message: `The check of the input file was stopped after about ${lines} lines: too many requests take too much time or memory to check.`,
  param: null,
  line: null,
});

function duplicateError(line: number, customId: string): BatchError {
  const shown = customId.length > 200 ? `${customId.slice(0, 200)}…` : customId;
  const message = `The custom_id '${shown}' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.`;
  return { code: 'duplicate_custom_id', message, param: 'custom_id', line };
}

type ReadDeps = { pool: SlicePool; rules: SliceRules; sliceTimeoutMs: number; signal: AbortSignal };

/** The custom_ids of the lines at these offsets, by offset, parsed in a thread since a line may be large. */
async function readCustomIds(
  { open }: ValidationInput,
  lines: DuplicateLine[],
  { pool, rules, sliceTimeoutMs, signal }: ReadDeps,
): Promise<Map<number, string>> {
  const customIds = new Map<number, string>();
  if (lines.length === 0) return customIds;
  const offsets = lines.map((line) => line.offset).sort((left, right) => left - right);
  for await (const { offset, bytes } of readLinesAt(open(), offsets)) {
    const result = await pool.run({ bytes, rules, withCustomIds: true }, sliceTimeoutMs, signal);
    const customId = result?.customIds[0];
    if (typeof customId === 'string') customIds.set(offset, customId);
  }
  return customIds;
}
