import { describe, expect, test } from 'vitest';
import { findGaps, assessProcess, type DayTally, type KnownProcess } from './assess-process.ts';

const said = (given: Partial<KnownProcess> = {}): KnownProcess => ({
  process_id: 'p',
  app: 'api',
  started_at: new Date('2026-11-21T10:00:00Z'),
  heard_at: new Date('2026-11-21T11:00:00Z'),
  last_sequence: 100,
  written_sequence: 100,
  lost_rows: 0,
  stopped_at: null,
  version: '1.0.0',
  host: 'one',
  is_silent: false,
  first_kept: 1,
  ...given,
});
const ended = (given: Partial<KnownProcess> = {}) => said({ stopped_at: new Date('2026-11-21T11:00:00Z'), ...given });
const silent = (given: Partial<KnownProcess> = {}) => said({ is_silent: true, ...given });

const day = '2026-11-21';
const tally = (first: number, last: number, rows = last - first + 1, on = day): DayTally => ({
  day: on,
  rows,
  first,
  last,
});
const judge = (process: KnownProcess | undefined, tallies: DayTally[], firstDay: string | null = day) => {
  const { state, rows, missing, earlierRows, expected, lateRows } = assessProcess('p', process, tallies, firstDay);
  return { state, rows, missing, earlierRows, expected, lateRows };
};

describe('of a process that ended in order', () => {
  test('every row up to the last that it told of must be there', () => {
    expect(judge(ended(), [tally(1, 100)])).toMatchObject({ state: 'ended', rows: 100, missing: 0, lateRows: 0 });
    expect(judge(ended(), [tally(1, 97)])).toMatchObject({ missing: 3, expected: [1, 100] });
    expect(judge(ended(), [tally(4, 100)])).toMatchObject({ missing: 3, earlierRows: 0 });
    expect(judge(ended(), [tally(1, 100, 98)])).toMatchObject({ missing: 2 });
    expect(judge(ended(), [])).toMatchObject({ rows: 0, missing: 100 });
  });

  test('that recorded nothing, nothing is missing', () => {
    const nothing = ended({ last_sequence: 0, written_sequence: 0, first_kept: null });
    expect(judge(nothing, [])).toMatchObject({ rows: 0, missing: 0, earlierRows: 0 });
  });

  test('rows that were recorded after its end are told apart', () => {
    expect(judge(ended(), [tally(1, 102)])).toMatchObject({ missing: 0, lateRows: 2 });
    expect(judge(ended(), [tally(1, 102, 101)])).toMatchObject({ missing: 1, lateRows: 2 });
  });

  test('several days are one sequence', () => {
    expect(judge(ended(), [tally(1, 40), tally(41, 100, 60, '2026-11-22')])).toMatchObject({ missing: 0 });
    expect(judge(ended(), [tally(1, 39), tally(41, 100, 60, '2026-11-22')])).toMatchObject({ missing: 1 });
  });
});

describe('of a process that is running', () => {
  test('rows that it has recorded and not yet written are not missing', () => {
    expect(judge(said({ last_sequence: 100, written_sequence: 90 }), [tally(1, 90)])).toMatchObject({
      state: 'running',
      missing: 0,
    });
  });

  test('rows that it had written are', () => {
    expect(judge(said({ last_sequence: 100, written_sequence: 90 }), [tally(1, 89)])).toMatchObject({ missing: 1 });
  });

  test('rows that came after it was last heard of are compared among each other', () => {
    expect(judge(said(), [tally(1, 164)])).toMatchObject({ missing: 0, expected: [1, 164] });
    expect(judge(said(), [tally(1, 164, 163)])).toMatchObject({ missing: 1 });
  });
});

describe('of a process that was killed', () => {
  test('what it had recorded when it was last heard of must be there, written or not', () => {
    const killed = silent({ last_sequence: 100, written_sequence: 90 });
    expect(judge(killed, [tally(1, 97)])).toMatchObject({ state: 'silent', missing: 3, expected: [1, 100] });
    expect(judge(killed, [tally(1, 120)])).toMatchObject({ state: 'silent', missing: 0 });
  });
});

describe('of days that are not looked at', () => {
  const before = { started_at: new Date('2026-11-01T00:00:00Z') };

  test('rows are not missing, and those after them are, from the first that the process told of', () => {
    expect(judge(ended({ ...before, first_kept: 51 }), [tally(51, 100)])).toMatchObject({
      missing: 0,
      earlierRows: 50,
    });
    expect(judge(ended({ ...before, first_kept: 51 }), [tally(53, 100)])).toMatchObject({
      missing: 2,
      earlierRows: 50,
      expected: [51, 100],
    });
    expect(judge(ended({ ...before, first_kept: 51 }), [])).toMatchObject({ missing: 50, earlierRows: 50 });
  });

  test('a process that recorded nothing since lacks nothing', () => {
    expect(judge(ended({ ...before, first_kept: null }), [])).toMatchObject({ missing: 0, earlierRows: 100 });
  });

  test('a process that was killed before it could tell where the first day began is taken by its rows', () => {
    expect(judge(silent({ ...before, first_kept: null }), [tally(110, 120)])).toMatchObject({
      missing: 0,
      earlierRows: 109,
    });
  });

  test('a process whose rows of the day before wait to be written lacks nothing', () => {
    const late = said({ ...before, last_sequence: 102, written_sequence: 98, first_kept: 101 });
    expect(judge(late, [])).toMatchObject({ missing: 0, earlierRows: 98 });
  });

  test('without a first day every row must be there', () => {
    expect(judge(ended(before), [], null)).toMatchObject({ missing: 100 });
  });
});

test('of a process that never said a word, only what lies between its rows can be missing', () => {
  expect(judge(undefined, [tally(5, 10, 4)])).toEqual({
    state: 'unknown',
    rows: 4,
    missing: 2,
    earlierRows: 4,
    expected: [5, 10],
    lateRows: 0,
  });
});

describe('gaps', () => {
  const hole = (first: number, last: number, on = day) => ({ day: on, first, last });

  test('are named at the beginning, inside a day, between days and at the end', () => {
    const tallies = [tally(3, 10, 5), tally(13, 20, 8, '2026-11-22')];
    expect(findGaps([1, 22], tallies, [hole(5, 6), hole(8, 8)], 20)).toEqual([
      [1, 2],
      [5, 6],
      [8, 8],
      [11, 12],
      [21, 22],
    ]);
  });

  test('of a process without rows are all of them', () => {
    expect(findGaps([5, 9], [], [], 20)).toEqual([[5, 9]]);
  });

  test('are none where a clock that was set back put rows into the day before', () => {
    const tallies = [tally(1, 6, 5), tally(5, 8, 3, '2026-11-22')];
    expect(findGaps([1, 8], tallies, [hole(5, 5), hole(6, 6, '2026-11-22')], 20)).toEqual([]);
  });

  test('are cut off after as many as are wanted', () => {
    const holes = [2, 4, 6, 8].map((at) => hole(at, at));
    expect(findGaps([1, 9], [tally(1, 9, 5)], holes, 3)).toEqual([
      [2, 2],
      [4, 4],
      [6, 6],
    ]);
  });
});
