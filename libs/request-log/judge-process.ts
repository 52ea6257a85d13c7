import type { Selectable } from 'kysely';
import type { RequestLogProcessTable } from '#libs/database/schema.ts';
import { utcDay } from './log-id.ts';

/** A first and a last sequence, both meant. */
export type SequenceRange = [first: number, last: number];

/** What the log holds of one process on one day. */
export type DayTally = { day: string; rows: number; first: number; last: number };

/** What a process said of itself: its row, and `first_kept`, its first sequence on the first day that is looked at. */
export type KnownProcess = Selectable<RequestLogProcessTable> & { is_silent: boolean; first_kept: number | null };

export type JudgedProcess = {
  processId: string;
  /**
   * `ended`: in order, after its last row was written. `silent`: not, and no longer heard of: killed, or cut off from
   * the database at its end. `unknown`: it left rows, but never said a word (a release that did not, or killed at once).
   */
  state: 'ended' | 'running' | 'silent' | 'unknown';
  said: KnownProcess | undefined;
  /** Of the days looked at: how many rows are there, the first and the last. */
  rows: number;
  first: number | null;
  last: number | null;
  /** Rows that it recorded on earlier days. */
  earlierRows: number;
  /** Rows that must be there and are not, and where to look for them. */
  missing: number;
  expected: SequenceRange;
  /** Rows that came after it had said that it stopped: whether they were the last, nobody knows. */
  lateRows: number;
};

/**
 * Pure. Which rows of a process must be there, and how many are not, as far as that can be said for certain: up to the
 * last that is there, or the last that the process said it had recorded (of a running one: written). `firstDay` is the
 * first day looked at; rows of the days before it, which were dropped or are not asked for, are not missing.
 */
export function judgeProcess(
  processId: string,
  said: KnownProcess | undefined,
  tallies: readonly DayTally[],
  firstDay: string | null,
): JudgedProcess {
  const rows = tallies.reduce((sum, tally) => sum + tally.rows, 0);
  const first = rows === 0 ? null : Math.min(...tallies.map((tally) => tally.first));
  const last = rows === 0 ? null : Math.max(...tallies.map((tally) => tally.last));
  const state = stateOf(said);
  const saidLast = (state === 'running' ? said?.written_sequence : said?.last_sequence) ?? 0;
  const expectedLast = Math.max(saidLast, last ?? 0);
  const expectedFirst = Math.min(firstOf(said, firstDay) ?? Infinity, first ?? Infinity, expectedLast + 1);
  return {
    processId,
    state,
    said,
    rows,
    first,
    last,
    earlierRows: expectedFirst - 1,
    missing: expectedLast - expectedFirst + 1 - rows,
    expected: [expectedFirst, expectedLast],
    lateRows: state === 'ended' ? Math.max(0, (last ?? 0) - saidLast) : 0,
  };
}

function stateOf(said: KnownProcess | undefined): JudgedProcess['state'] {
  if (said === undefined) return 'unknown';
  if (said.stopped_at !== null) return 'ended';
  return said.is_silent ? 'silent' : 'running';
}

/** The first sequence that must be there, as the process said; undefined when it recorded nothing on the days or later. */
function firstOf(said: KnownProcess | undefined, firstDay: string | null): number | undefined {
  if (said === undefined) return undefined;
  if (firstDay === null || utcDay(said.started_at.getTime()) >= firstDay) return 1;
  return said.first_kept ?? undefined;
}

/**
 * Pure. Where the rows are missing, in order: the part of `expected` that is in no tally. `holes` are the ranges that
 * are missing inside the days, of which the first `limit` must be there; so many are returned at most.
 */
export function findGaps(
  expected: SequenceRange,
  tallies: readonly DayTally[],
  holes: readonly { day: string; first: number; last: number }[],
  limit: number,
): SequenceRange[] {
  const present = tallies.flatMap((tally) => {
    const inside = holes.filter((hole) => hole.day === tally.day).toSorted((a, b) => a.first - b.first);
    const starts = [tally.first, ...inside.map((hole) => hole.last + 1)];
    const ends = [...inside.map((hole) => hole.first - 1), tally.last];
    return starts.map((start, index): SequenceRange => [start, ends[index] ?? tally.last]);
  });
  const gaps: SequenceRange[] = [];
  let next = expected[0];
  // Days overlap where a clock was set back over midnight.
  for (const [first, last] of [...present.toSorted((a, b) => a[0] - b[0]), [expected[1] + 1, expected[1]] as const]) {
    if (first > next) gaps.push([next, first - 1]);
    next = Math.max(next, last + 1);
  }
  return gaps.slice(0, limit);
}
