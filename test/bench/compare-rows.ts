import type { BatchFigures } from './batch-bench.ts';
import type { TargetFigures } from './measure-targets.ts';
import { fixed, whole, type Row } from './report.ts';
import { median } from './statistics.ts';

export type Side = 'here' | 'there';

/** `name`: of the other commit. */
export type Compared = {
  name: string;
  live: Record<Side, TargetFigures>;
  batches: Record<Side, readonly BatchFigures[]>;
};

/** How the figures of this checkout differ from those of another commit. */
export function compareRows({ name, live, batches }: Compared): Row[] {
  const section = `this checkout against ${name}: median of the ratios of rounds (lowest, highest), and medians`;
  const row = (figure: string, format: (value: number) => string, of: (side: Side) => readonly number[]): Row => {
    const [here, there] = [of('here'), of('there')];
    const ratios = here.map((value, round) => value / (there[round] ?? Number.NaN));
    const spread = `${fixed(Math.min(...ratios), 2)}, ${fixed(Math.max(...ratios), 2)}`;
    return {
      section,
      figure,
      value: `${fixed(median(ratios), 2)} × (${spread}): ${format(median(here))} instead of ${format(median(there))}`,
    };
  };
  const microseconds = (value: number): string => `${fixed(value, 1)} µs`;
  const ofBatches = (of: (batch: BatchFigures) => number) => (side: Side) => batches[side].map(of);
  const perLine = (part: 'worker' | 'postgres') =>
    ofBatches(({ cpuSeconds, lines }) => (cpuSeconds[part] / lines) * 1_000_000);
  return [
    row('live call: processor time of the API', microseconds, (side) => live[side].byRound.cpuMicroseconds),
    row('live calls a second', whole, (side) => live[side].byRound.perSecond),
    row(
      'live call: p99 when saturated',
      (value) => `${fixed(value, 1)} ms`,
      (side) => live[side].byRound.p99Ms,
    ),
    row(
      'lines of a batch a second',
      whole,
      ofBatches(({ lines, totalSeconds }) => lines / totalSeconds),
    ),
    row('line: processor time of the worker', microseconds, perLine('worker')),
    row('line: processor time of Postgres', microseconds, perLine('postgres')),
  ];
}
