import type { BatchError } from '#libs/contracts/batches/batches.ts';

/** The errors of a file, sorted by line: the first `max` of them, and how many more there are. */
export function createErrorList(max: number) {
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

export const emptyFile: BatchError = {
  code: 'empty_file',
  message: 'The input file is empty. Please ensure that the batch contains at least one request.',
  param: null,
  line: null,
};

export const notUtf8: BatchError = {
  code: 'invalid_request',
  message: 'Invalid file for Batch API. Must be utf-8 encoded',
  param: null,
  line: null,
};

export const notLines: BatchError = {
  code: 'invalid_json_line',
  message:
    "The file begins with '[', like a JSON array. A batch file is JSON Lines: write one JSON object per line, " +
    'without brackets around them and commas between them.',
  param: null,
  line: 1,
};

export const tooManyTasks = (linesMax: number): BatchError => ({
  code: 'too_many_tasks',
  message: `The input file has more than the allowed ${linesMax} requests. Split it into several batches.`,
  param: null,
  line: null,
});

export const tooCostly = (lines: number): BatchError => ({
  code: 'validation_stopped',
  message: `Validation stopped after about ${lines} lines: too many requests take too much time or memory to check.`,
  param: null,
  line: null,
});

export function duplicateError(line: number, customId: string): BatchError {
  const shown = customId.length > 200 ? `${customId.slice(0, 200)}…` : customId;
  const message = `The custom_id '${shown}' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.`;
  return { code: 'duplicate_custom_id', message, param: 'custom_id', line };
}
