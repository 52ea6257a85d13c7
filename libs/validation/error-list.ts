import type { BatchError } from '#libs/contracts/batches.ts';

/** The errors of a file, by line and capped: the first `max` of them, and how many more there are. */
export function createErrorList(max: number) {
  let kept: BatchError[] = [];
  let total = 0;
  return {
    add(error: BatchError): void {
      total += 1;
      kept.push(error);
      if (kept.length > 2 * max) kept = sorted(kept).slice(0, max);
    },
    /** Counts errors of which nothing more is known; they are never among the first. */
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

/** Errors of the file as a whole come first. Stable: two errors of one line stay in the order in which they came. */
const sorted = (errors: BatchError[]): BatchError[] =>
  errors.toSorted((left, right) => (left.line ?? 0) - (right.line ?? 0));
