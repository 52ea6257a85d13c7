import type { Selectable } from 'kysely';
import type { RequestLogProcessTable } from '#libs/database/schema.ts';
import { utcDay } from '../row/log-id.ts';

/** A first and a last sequence, both included. */
export type SequenceRange = [first: number, last: number];

/** The rows of one process on one day. */
export type DayTally = { day: string; rows: number; first: number; last: number };

/** The report of a process: its row, and `first_kept`, its first sequence on the first checked day. */
export type KnownProcess = Selectable<RequestLogProcessTable> & { is_silent: boolean; first_kept: number | null };

export type ProcessAssessment = {
  processId: string;
  /**
   * `ended`: stopped cleanly, after its last row was written. `silent`: no clean stop and no recent report, because it
   * was killed, or cut off from the database when it stopped. `unknown`: it left rows but never reported (killed right
   * after its start).
   */
  state: 'ended' | 'running' | 'silent' | 'unknown';
  said: KnownProcess | undefined;
  /** On the checked days: the number of rows, the first and the last. */
  rows: number;
  first: number | null;
  last: number | null;
  /** Rows that it recorded on earlier days. */
  earlierRows: number;
  /** The number of rows that must exist but do not, and the range in which to look for them. */
  missing: number;
  expected: SequenceRange;
  /** Rows recorded after it had reported its stop. Whether more are missing is unknown. */
  lateRows: number;
};

/**
 * Pure. Decides which rows of a process must exist and how many are missing, as far as that is certain: up to the last
 * existing row, or the last that the process reported as recorded (if it is running: as written). `firstDay` is the first
 * checked day; rows of earlier days, which were deleted or not requested, are not missing.
 */
export function assessProcess(
  processId: string,
  said: KnownProcess | undefined,
  tallies: readonly DayTally[],
  firstDay: string | null,
): ProcessAssessment {
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

function stateOf(said: KnownProcess | undefined): ProcessAssessment['state'] {
  if (said === undefined) return 'unknown';
  if (said.stopped_at !== null) return 'ended';
  return said.is_silent ? 'silent' : 'running';
}

/** The first sequence that must exist according to the process; undefined if it recorded nothing on these days or later. */
function firstOf(said: KnownProcess | undefined, firstDay: string | null): number | undefined {
  if (said === undefined) return undefined;
  if (firstDay === null || utcDay(said.started_at.getTime()) >= firstDay) return 1;
  return said.first_kept ?? undefined;
}

/**
 * Pure. The places of missing rows in order: the part of `expected` that is in no tally. `holes` are the missing ranges
 * inside the days, of which at least the first `limit` must be given; at most that many are returned.
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
  // Days overlap if a clock was set back over midnight.
  for (const [first, last] of [...present.toSorted((a, b) => a[0] - b[0]), [expected[1] + 1, expected[1]] as const]) {
    if (first > next) gaps.push([next, first - 1]);
    next = Math.max(next, last + 1);
  }
  return gaps.slice(0, limit);
}
