import type { BatchError } from '#libs/contracts/batches/batches.ts';
import { createSliceChecker, type CheckedSlice } from './check-slices.ts';
import { createChunkTable } from './chunk-table.ts';
import { createDuplicateFinder, type DuplicateLine } from './lines/duplicate-finder.ts';
import { createSharedBuffers, sliceFile, type FileSlice } from './file-slices.ts';
import { readLinesAt } from './json-lines.ts';
import type { SlicePool } from './slice-pool.ts';
import { wordsPerDigest, wordsPerRange, type SliceRules } from './slice-task.ts';
import { createUsageSum } from './usage-sum.ts';
import type { ValidationInput, ValidationLimits, ValidationResult } from './validation.ts';

type Deps = { pool: SlicePool; limits: ValidationLimits; temporaryDirectory: string; slicesInFlight: number };

/** See BatchFileValidator.validate. */
export async function validateFile(input: ValidationInput, deps: Deps): Promise<ValidationResult> {
  const { pool, limits } = deps;
  const { endpoint, hasDefaultTarget, virtualKeys, publicNames, unable, prompts, withoutBodies, estimatesUsage } =
    input;
  const target = { endpoint, hasDefaultTarget, virtualKeys, publicNames, unable };
  const rules: SliceRules = { ...limits, ...target, prompts, withoutBodies, estimatesUsage };
  const ended = new AbortController(); // This stops running slices when the check ends early.
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
      input.onLeaves?.(checked.result.leaves);
      await findings.flush();
      if (checked.slice.kind === 'lines') buffers.recycle(checked.slice.bytes);
      input.onProgress?.({ bytes: toCallEnd(checked.slice), lines: findings.lineCount() });
      if (!goOn) break;
      if (input.enough?.aborted === true) {
        findings.leave();
        break;
      }
    }
    const { duplicates, count } = await findings.finishDuplicates();
    const customIds = await readCustomIds(input, duplicates, { pool, rules, sliceTimeoutMs, signal });
    return findings.conclude(duplicates, count, customIds);
  } finally {
    ended.abort(new Error('the check of the file has ended'));
    await findings.dispose();
  }
}

const toCallEnd = (slice: FileSlice): number =>
  slice.offset + (slice.kind === 'lines' ? slice.bytes.length : slice.lengthBytes);

/**
 * The maximum of different prompts that the lines of a file can name, because their versions are stored with the batch.
 */
const promptsMax = 100;

const tooManyPrompts: BatchError = {
  code: 'too_many_prompts',
  message: `The lines use more than ${promptsMax} different prompts. Split the file into several batches.`,
  param: null,
  line: null,
};

/** Collects the results of the slices, which are added in order. */
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
  const prompts = new Set<string>();
  const usage = createUsageSum();
  let isWhole = true;
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
    /** Returns false when the rest of the file need not be checked. */
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
      usage.addAll(result.usage);
      for (const name of result.prompts) prompts.add(name);
      if (prompts.size > promptsMax) fileError = tooManyPrompts;
      if (!withinMax) fileError = tooManyTasks(input.linesMax ?? 0);
      else if (!checked.complete || timeouts > limits.costlyLinesMax) fileError = tooCostly(linesBefore);
      return fileError === null;
    },
    /** The rest of the file is not read. */
    leave: () => (isWhole = false),
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
      const checked = { lineCount, isWhole, usage: usage.take() };
      if (all.length > 0) return { ...checked, valid: false, errors: all };
      return { ...checked, valid: true, chunks: table.chunks(), model: model ?? null, prompts: [...prompts] };
    },
  };
}

function hasDigest(digests: Uint32Array, at: number): boolean {
  return digests[at] !== 0 || digests[at + 1] !== 0 || digests[at + 2] !== 0 || digests[at + 3] !== 0;
}

/**
 * Detected by the byte order mark, or by a zero byte: ASCII in UTF-16 has one in each character, but JSON in UTF-8
 * never contains one.
 */
function isUtf16([first, second]: Uint8Array): boolean {
  return (first === 0xff && second === 0xfe) || (first === 0xfe && second === 0xff) || first === 0 || second === 0;
}

/**
 * Whether the file is one JSON array: it begins with `[`, which is not closed in the same line, or that line is the
 * whole file. Otherwise each line of such a file would be reported as an error.
 */
function isArray(bytes: Uint8Array): boolean {
  const first = bytes.findIndex((byte) => !ignored.has(byte));
  if (bytes[first] !== 0x5b) return false;
  const lineEnd = bytes.indexOf(0x0a, first);
  if (lineEnd === -1) return true;
  const last = bytes.subarray(first, lineEnd).findLast((byte) => !ignored.has(byte));
  return last !== 0x5d || bytes.subarray(lineEnd).every((byte) => ignored.has(byte));
}

/** White space and the bytes of a byte order mark. */
const ignored: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d, 0xef, 0xbb, 0xbf]);

type ReadDeps = { pool: SlicePool; rules: SliceRules; sliceTimeoutMs: number; signal: AbortSignal };

/** The custom_ids of the lines at these offsets, by offset. A large one is parsed in a thread. */
async function readCustomIds(
  { open }: ValidationInput,
  lines: DuplicateLine[],
  { pool, rules, sliceTimeoutMs, signal }: ReadDeps,
): Promise<Map<number, string>> {
  const customIds = new Map<number, string>();
  if (lines.length === 0) return customIds;
  const offsets = lines.map((line) => line.offset).sort((left, right) => left - right);
  for await (const { offset, bytes } of readLinesAt(open(), offsets)) {
    const result = await pool.check({ bytes, rules, withCustomIds: true }, sliceTimeoutMs, signal);
    const customId = result?.customIds[0];
    if (typeof customId === 'string') customIds.set(offset, customId);
  }
  return customIds;
}

/**
 * Runs `work` for each item, at most `inFlight` concurrently, and yields the results in the order of the items. The
 * source is only read as results are consumed. The first failure ends it.
 */
async function* inOrder<Item, Result>(
  source: AsyncIterable<Item>,
  work: (item: Item) => Promise<Result>,
  inFlight: number,
): AsyncGenerator<Result> {
  const running: Promise<Result>[] = [];
  for await (const item of source) {
    const result = work(item);
    // It can fail while an earlier one is awaited. The later await still throws the error.
    result.catch(() => undefined);
    running.push(result);
    const oldest = running.length >= inFlight ? running.shift() : undefined;
    if (oldest !== undefined) yield await oldest;
  }
  yield* running;
}

/** The errors of a file, sorted by line: the first `max` of them, and how many more there are. */
function createErrorList(max: number) {
  let kept: BatchError[] = [];
  let total = 0;
  return {
    add(error: BatchError): void {
      total += 1;
      kept.push(error);
      if (kept.length > 2 * max) kept = sorted(kept).slice(0, max);
    },
    /** Counts errors without details. They are never among the first `max`. */
    addUncounted(count: number): void {
      total += count;
    },
    count: (): number => total,
    take(): BatchError[] {
      const first = sorted(kept).slice(0, max);
      const more = total - first.length;
      if (more === 0) return first;
      const message = `And ${more} more ${more === 1 ? 'error' : 'errors'}. Correct these first.`;
      return [...first, { code: 'more_errors', message, param: null, line: null }];
    },
  };
}

/** Errors of the file as a whole come first. Stable: errors of the same line keep their order. */
const sorted = (errors: BatchError[]): BatchError[] =>
  errors.toSorted((left, right) => (left.line ?? 0) - (right.line ?? 0));

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
    "The file begins with '[', like a JSON array. A batch file is JSON Lines: write one JSON object per line, " +
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
  message: `Validation stopped after about ${lines} lines: too many requests take too much time or memory to check.`,
  param: null,
  line: null,
});

function duplicateError(line: number, customId: string): BatchError {
  const shown = customId.length > 200 ? `${customId.slice(0, 200)}…` : customId;
  const message = `The custom_id '${shown}' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.`;
  return { code: 'duplicate_custom_id', message, param: 'custom_id', line };
}
