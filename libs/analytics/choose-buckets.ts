import { GatewayError } from '#libs/kernel/errors.ts';
import { grainMs, type Grain } from './aggregate-calls.ts';
import type { RollupState } from './rollups/roll-up.ts';
import type { TimeRange } from './time-ranges.ts';

/** A part of the queried time, and the source of its calls. */
export type Segment = TimeRange & { source: Grain | 'log' };

/**
 * The tables at one moment: the progress of rollups, since when they contain which metadata keys of the requesting
 * workspace, since when the log is complete, and the current time (epoch ms).
 */
export type Kept = RollupState & { keys: ReadonlyMap<string, number>; logFrom: number; now: number };

const { minute, hour, day } = grainMs;
/** The longest time of a query, which is also the default retention of days. */
const rangeMsMax = 400 * day;

/** The distance of points, by the length of the time: at most 400 points. */
const steps = [
  { untilMs: 3 * hour, stepMs: minute },
  { untilMs: 24 * hour, stepMs: 10 * minute },
  { untilMs: 14 * day, stepMs: hour },
  { untilMs: rangeMsMax, stepMs: day },
] as const;

/**
 * The time of a query, both bounds included, as a range. Throws invalid_request when it is too long or ends before it
 * begins.
 */
export function toQueryRange(query: { time_of_generation_min: Date; time_of_generation_max: Date }): TimeRange {
  const range = { from: query.time_of_generation_min.getTime(), to: query.time_of_generation_max.getTime() + 1 };
  if (range.to > range.from && range.to - range.from <= rangeMsMax + 1) return range;
  const message =
    range.to <= range.from
      ? "Invalid 'time_of_generation_max': expected a time that is not before 'time_of_generation_min'."
      : `Invalid 'time_of_generation_min': expected a time at most ${rangeMsMax / day} days before 'time_of_generation_max'.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, {
    param: range.to <= range.from ? 'time_of_generation_max' : 'time_of_generation_min',
  });
}

/**
 * The distance of the points of a graph. It depends on the length of the time, and for old times on the retention of
 * buckets.
 */
export function chooseStep({ from, to }: TimeRange, kept: Pick<Kept, 'minutesFrom' | 'hoursFrom'>): number {
  const byLength = steps.find(({ untilMs }) => to - from <= untilMs + 1)?.stepMs ?? day;
  if (from < kept.hoursFrom) return day;
  return from < kept.minutesFrom ? Math.max(byLength, hour) : byLength;
}

/**
 * Divides a time into the coarsest existing buckets that are no longer than `stepMs`. The rest at both ends comes from
 * finer buckets, and finally from rows of the log. If the log is no longer retained there, the bucket at an end is
 * included whole. Without a step, buckets can have any length. Only rows of single values have buckets of ten minutes.
 */
export function divideIntoSegments(
  range: TimeRange,
  kept: Kept,
  { stepMs = day, hasTens = false }: { stepMs?: number | undefined; hasTens?: boolean } = {},
): Segment[] {
  const buckets: { source: Grain; from: number; to: number }[] = [
    { source: 'day', from: kept.daysFrom, to: kept.daysUntil },
    { source: 'hour', from: kept.hoursFrom, to: kept.hoursUntil },
    ...(hasTens ? [{ source: 'ten_minutes' as const, from: kept.tensFrom, to: kept.tensUntil }] : []),
    { source: 'minute', from: kept.minutesFrom, to: Number.POSITIVE_INFINITY },
  ];
  const finestAt = (at: number): number => grainMs[buckets.findLast(({ from }) => at >= from)?.source ?? 'day'];
  // No call is recorded after now, so the current minute is read whole, from its rollup.
  const to = range.to > kept.now ? Math.ceil(range.to / minute) * minute : range.to;
  const end = to - 1 < kept.logFrom ? Math.ceil(to / finestAt(to - 1)) * finestAt(to - 1) : to;
  const from =
    range.from < kept.logFrom ? Math.floor(range.from / finestAt(range.from)) * finestAt(range.from) : range.from;
  return divide(
    { from, to: end },
    buckets.filter(({ source }) => grainMs[source] <= stepMs),
  );
}

function divide(range: TimeRange, [coarsest, ...finer]: { source: Grain; from: number; to: number }[]): Segment[] {
  if (range.to <= range.from) return [];
  if (coarsest === undefined) return [{ ...range, source: 'log' }];
  const lengthMs = grainMs[coarsest.source];
  const from = Math.ceil(Math.max(range.from, coarsest.from) / lengthMs) * lengthMs;
  const to = Math.floor(Math.min(range.to, coarsest.to) / lengthMs) * lengthMs;
  if (to <= from) return divide(range, finer);
  return [
    ...divide({ from: range.from, to: from }, finer),
    { from, to, source: coarsest.source },
    ...divide({ from: to, to: range.to }, finer),
  ];
}
