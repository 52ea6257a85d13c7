import { getLogUuidTime } from '../row/log-id.ts';

/** The lowest and the highest ID of the rows of a group. */
export type IdRange = { first: string; last: string };

/**
 * The range of the IDs of some rows. IDs begin with the time of the record, so they sort by time, even if the clock of
 * the process was set back between them.
 */
export function getIdRange(rows: readonly { id: string }[]): IdRange {
  let first = rows[0]?.id ?? '';
  let last = first;
  for (const { id } of rows) {
    if (id < first) first = id;
    if (id > last) last = id;
  }
  return { first, last };
}

/**
 * Returns the INSERT that reports when the rows of a group were recorded, or null without a group. It has to be in the
 * transaction that writes the rows: a reader that sees the change then sees the rows as well, and no row exists without
 * a change.
 */
export function changeOf(ranges: readonly IdRange[]): string | null {
  const [head] = ranges;
  if (head === undefined) return null;
  const first = ranges.reduce((low, range) => (range.first < low ? range.first : low), head.first);
  const last = ranges.reduce((high, range) => (range.last > high ? range.last : high), head.last);
  const time = (id: string): string => new Date(getLogUuidTime(id)).toISOString();
  return `insert into request_log_change (first_at, last_at) values ('${time(first)}', '${time(last)}')`;
}
