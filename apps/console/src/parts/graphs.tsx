import type { UseQueryResult } from '@tanstack/react-query';
import { periods, type Period } from '../analytics.ts';
import { Card, Shown } from './basics.tsx';
import { Chart, type Series } from './chart.tsx';

/** Chooses the period that a page shows. */
export function PeriodSelect({ period, onChange }: { period: Period; onChange: (period: string) => void }) {
  return (
    <select aria-label="Period" value={period} onChange={(event) => onChange(event.target.value)}>
      {Object.entries(periods).map(([name, { text }]) => (
        <option key={name} value={name}>
          {text}
        </option>
      ))}
    </select>
  );
}

type Graph<Point> = { data_points: readonly (Point & { timestamp: string })[] };

/** A graph of analytics with its title. `series` and `summary` are made from the answer. */
export function GraphCard<Point, Answer extends Graph<Point>>({
  title,
  query,
  series,
  format,
  summary,
}: {
  title: string;
  query: UseQueryResult<Answer>;
  series: (answer: Answer) => Series[];
  format: (value: number) => string;
  summary: (answer: Answer) => string;
}) {
  return (
    <Card title={title}>
      <Shown query={query}>
        {(answer) => (
          <Chart
            times={answer.data_points.map(({ timestamp }) => Date.parse(timestamp) / 1_000)}
            series={series(answer)}
            format={format}
            summary={summary(answer)}
          />
        )}
      </Shown>
    </Card>
  );
}

/** A bar for each point; nothing is drawn for 0. */
export const bars = <Point,>(
  label: string,
  color: Series['color'],
  points: readonly Point[] | undefined,
  valueOf: (point: Point) => number,
): Series => ({ label, color, asBars: true, values: (points ?? []).map((point) => valueOf(point) || null) });
