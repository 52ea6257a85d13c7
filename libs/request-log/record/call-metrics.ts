import { Counter, type Registry } from 'prom-client';
import { FixedHistogram, type HistogramSeries } from '#libs/kernel/fixed-histogram.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { classifyCallOutcome, type CallOutcome } from '../row/call-outcome.ts';
import type { RequestLogEntry } from '../row/log-entry.ts';

export type CallMetrics = {
  /** Counts a call. Imported calls, which were made elsewhere, are skipped. Never throws. */
  observe: (entry: RequestLogEntry) => void;
  /** Shows the metrics in a registry. */
  registerIn: (registry: Registry) => void;
};

/** The maximum of models with a separate label. The calls of all others are counted as `other`. */
const modelsMax = 200;
/** The maximum that one workspace can add, so that it cannot use up the labels for the others. */
const modelsOfWorkspaceMax = 50;
const modelCharsMax = 100;
const errorCodesMax = 100;
const errorCode = /^[a-z0-9_.-]{1,64}$/i;
/** More than any call can use. A larger report of a provider would make the counter useless. */
const tokensOfCallMax = 1e9;

// In seconds, from an answer of the cache to the longest wait for a model.
const durationBuckets = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600];

/** The metrics are only in the registries that `registerIn` is called with. */
const registers: Registry[] = [];
const ofModel = ['provider', 'model', 'kind'] as const;

type ModelLabels = Record<(typeof ofModel)[number], string>;

/**
 * The sums for the calls of one provider, model and kind. prom-client hashes the labels at each increment, which costs
 * more than the rest of an observation, so its counters are only filled when Prometheus asks.
 */
type Counts = {
  labels: ModelLabels;
  durations: HistogramSeries;
  /** Absent until the first streamed answer. */
  firstEvents?: HistogramSeries;
  outcomes: Record<CallOutcome, number>;
  tokens: { input: number; cached: number; output: number; reasoning: number };
  dollars: number;
};

/**
 * Metrics of the calls of this process by provider, model and kind (live, batch). Clients choose model names, so a
 * model gets a label only after one of its calls has succeeded, within the limits above.
 */
export function createCallMetrics(): CallMetrics {
  const codes = new Set<string>();
  const errors = new Counter({
    name: 'sluice_call_errors_total',
    help: 'Calls that ended with an error, by provider, kind (live, batch) and error code.',
    labelNames: ['provider', 'kind', 'code'],
    registers,
  });
  const durations = new FixedHistogram<keyof ModelLabels>({
    name: 'sluice_call_duration_seconds',
    help: 'Seconds from the arrival of a call to the end of its answer, with all attempts.',
    buckets: durationBuckets,
  });
  const firstEvents = new FixedHistogram<keyof ModelLabels>({
    name: 'sluice_call_first_event_seconds',
    help: 'Seconds to the first event of a streamed answer: the time to the first token.',
    buckets: durationBuckets,
  });
  const counts = new ModelCounts(durations);
  const cacheAnswers = new Counter({
    name: 'sluice_call_cache_total',
    help: 'Lookups in the response cache, by provider and result (hit, miss, refresh, disabled).',
    labelNames: ['provider', 'result'],
    registers,
  });
  const verdicts = new Counter({
    name: 'sluice_call_guardrails_total',
    help: 'Calls that did not pass their guardrails, by provider and verdict (failed: only reported, denied: rejected).',
    labelNames: ['provider', 'verdict'],
    registers,
  });

  return {
    observe(entry) {
      const { kind, status, error_code: code, cache_status: cacheStatus } = entry;
      if (kind === 'imported') return;
      const provider = entry.provider === null ? 'none' : (findProvider(entry.provider)?.id ?? 'other');
      const sums = counts.find(provider, kind, entry);
      sums.outcomes[classifyCallOutcome(entry)] += 1;
      if (entry.duration_ms >= 0) sums.durations.observe(entry.duration_ms / 1_000);
      if (entry.first_event_ms !== null && entry.first_event_ms >= 0) {
        sums.firstEvents ??= firstEvents.addSeries(sums.labels);
        sums.firstEvents.observe(entry.first_event_ms / 1_000);
      }
      sums.tokens.input += plausible(entry.input_tokens);
      sums.tokens.cached += plausible(entry.cached_tokens);
      sums.tokens.output += plausible(entry.output_tokens);
      sums.tokens.reasoning += plausible(entry.reasoning_tokens);
      const cents = Number(entry.cost);
      if (cents > 0 && Number.isFinite(cents)) sums.dollars += cents / 100;
      if (code !== null) errors.inc({ provider, kind, code: codeLabel(codes, code) });
      if (cacheStatus !== null) {
        const result = cacheStatus.toLowerCase();
        cacheAnswers.inc({ provider, result: cacheResults.has(result) ? result : 'other' });
      }
      if (status === 246 || status === 446) verdicts.inc({ provider, verdict: status === 446 ? 'denied' : 'failed' });
    },
    registerIn(registry) {
      for (const counter of [...createSumCounters(counts), errors]) registry.registerMetric(counter);
      for (const histogram of [durations, firstEvents]) histogram.registerIn(registry);
      for (const counter of [cacheAnswers, verdicts]) registry.registerMetric(counter);
    },
  };
}

/** The counters of the sums. They are filled when Prometheus asks. */
function createSumCounters(counts: ModelCounts): Counter[] {
  const summed = (
    name: string,
    help: string,
    label: readonly string[],
    fill: (counter: Counter, counts: Counts) => void,
  ): Counter => {
    const counter: Counter = new Counter({
      name,
      help,
      labelNames: [...ofModel, ...label],
      registers,
      collect() {
        counter.reset();
        counts.forEach((each) => fill(counter, each));
      },
    });
    return counter;
  };
  return [
    summed(
      'sluice_calls_total',
      'Calls by provider, model, kind (live, batch) and outcome (succeeded, refused by this gateway, failed at the provider).',
      ['outcome'],
      (counter, { labels, outcomes }) => {
        for (const [outcome, count] of Object.entries(outcomes)) counter.inc({ ...labels, outcome }, count);
      },
    ),
    summed(
      'sluice_call_tokens_total',
      'Tokens by type, as reported by providers. Cached tokens are part of input, and reasoning tokens are part of output.',
      ['type'],
      (counter, { labels, tokens }) => {
        for (const [type, count] of Object.entries(tokens)) counter.inc({ ...labels, type }, count);
      },
    ),
    summed(
      'sluice_call_cost_dollars_total',
      'Cost of calls in US dollars, without calls whose cost is unknown (sluice_unpriced_calls_total).',
      [],
      (counter, { labels, dollars }) => counter.inc(labels, dollars),
    ),
  ];
}

/** A label for the code. The set has those that already have one. */
function codeLabel(codes: Set<string>, code: string): string {
  if (codes.has(code)) return code;
  if (codes.size >= errorCodesMax || !errorCode.test(code)) return 'other';
  codes.add(code);
  return code;
}

/** The sums by provider, model and kind, within the limits for models. */
class ModelCounts {
  readonly #durations: FixedHistogram<keyof ModelLabels>;
  readonly #byProvider = new Map<string, Map<string, { live?: Counts; batch?: Counts }>>();
  readonly #modelsOfWorkspace = new Map<string, number>();
  #models = 0;

  constructor(durations: FixedHistogram<keyof ModelLabels>) {
    this.#durations = durations;
  }

  find(provider: string, kind: 'live' | 'batch', entry: RequestLogEntry): Counts {
    let ofProvider = this.#byProvider.get(provider);
    if (ofProvider === undefined) this.#byProvider.set(provider, (ofProvider = new Map()));
    const { model: asked } = entry;
    const model = asked === null ? 'none' : this.#isNamed(ofProvider, asked, entry) ? asked : 'other';
    let ofKinds = ofProvider.get(model);
    if (ofKinds === undefined) ofProvider.set(model, (ofKinds = {}));
    const known = ofKinds[kind];
    if (known !== undefined) return known;
    const labels = { provider, model, kind };
    return (ofKinds[kind] = {
      labels,
      durations: this.#durations.addSeries(labels),
      outcomes: { succeeded: 0, refused: 0, failed: 0 },
      tokens: { input: 0, cached: 0, output: 0, reasoning: 0 },
      dollars: 0,
    });
  }

  forEach(show: (counts: Counts) => void): void {
    for (const ofProvider of this.#byProvider.values())
      for (const { live, batch } of ofProvider.values()) for (const each of [live, batch]) if (each) show(each);
  }

  /** Whether the model has a separate label, or gets one now. */
  #isNamed(known: ReadonlyMap<string, unknown>, model: string, entry: RequestLogEntry): boolean {
    if (known.has(model)) return true;
    if (classifyCallOutcome(entry) !== 'succeeded' || model.length > modelCharsMax) return false;
    const own = this.#modelsOfWorkspace.get(entry.workspace_id) ?? 0;
    if (this.#models >= modelsMax || own >= modelsOfWorkspaceMax) return false;
    this.#modelsOfWorkspace.set(entry.workspace_id, own + 1);
    this.#models += 1;
    return true;
  }
}

const cacheResults: ReadonlySet<string> = new Set(['hit', 'miss', 'refresh', 'disabled']);

/**
 * A count that a provider reported; 0 if it is not plausible for a call. prom-client throws for numbers that are not
 * finite.
 */
const plausible = (count: number | null): number =>
  count !== null && count > 0 && count <= tokensOfCallMax ? count : 0;
