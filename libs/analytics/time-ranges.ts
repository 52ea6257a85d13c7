/** Includes `from` and excludes `to`, both in epoch milliseconds. */
export type TimeRange = { from: number; to: number };

/** The same time in as few ranges as possible, oldest first, without empty ones. */
export function mergeRanges(ranges: readonly TimeRange[]): TimeRange[] {
  const merged: TimeRange[] = [];
  for (const range of ranges.toSorted((a, b) => a.from - b.from)) {
    if (range.to <= range.from) continue;
    const last = merged.at(-1);
    if (last !== undefined && range.from <= last.to) last.to = Math.max(last.to, range.to);
    else merged.push({ ...range });
  }
  return merged;
}

/** Divides merged ranges into the last `lengthMs` and the rest before them. */
export function splitOffLast(
  ranges: readonly TimeRange[],
  lengthMs: number,
): { taken: TimeRange[]; left: TimeRange[] } {
  const taken: TimeRange[] = [];
  const left: TimeRange[] = [];
  let room = lengthMs;
  for (const range of ranges.toReversed()) {
    const from = Math.max(range.from, range.to - room);
    room -= range.to - from;
    if (from < range.to) taken.unshift({ from, to: range.to });
    if (range.from < from) left.unshift({ from: range.from, to: from });
  }
  return { taken, left };
}
