import { AggregatorRegistry, type Registry } from 'prom-client';

/** The metrics of one process, as prom-client's `getMetricsAsJSON` returns them. */
export type Metrics = Awaited<ReturnType<Registry['getMetricsAsJSON']>>;

/**
 * Adds up the metrics of several processes. Counters and histograms are summed. Gauges get the label `process`, because a
 * sum of a state that all processes read from the database would be wrong.
 */
export function createMetricSums() {
  const latest = new Map<number, Metrics>();
  let ended: Metrics = [];
  return {
    /** Records the current metrics of a process by its number. */
    record(process: number, metrics: Metrics): void {
      latest.set(process, metrics);
    },
    /**
     * Records that a process has ended. Its last counters stay in the sums. Otherwise these would decrease, and Prometheus
     * would take a sum that decreases for a counter that starts again from 0, and count everything twice.
     */
    end(process: number): void {
      const counted = (latest.get(process) ?? []).filter((metric) => !isGauge(metric));
      latest.delete(process);
      ended = sum([ended, counted]).getMetricsAsArray() as Metrics;
    },
    render: async (): Promise<string> =>
      await sum([ended, ...[...latest].map(([process, metrics]) => labelGauges(metrics, process))]).metrics(),
  };
}

// The type of prom-client is that of an enum that does not exist.
const isGauge = ({ type }: Metrics[number]): boolean => String(type) === 'gauge';

const labelGauges = (metrics: Metrics, process: number): Metrics =>
  metrics.map((metric) =>
    isGauge(metric)
      ? { ...metric, values: metric.values.map((each) => ({ ...each, labels: { ...each.labels, process } })) }
      : metric,
  );

/** Sums the values with the same name and labels, whatever a metric proposes, such as an average. */
const sum = (processes: readonly Metrics[]): Registry =>
  AggregatorRegistry.aggregate(processes.map((metrics) => metrics.map((metric) => ({ ...metric, aggregator: 'sum' }))));
