import { Counter, Histogram, type Registry } from 'prom-client';
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

const ofModel = ['provider', 'model', 'kind'] as const;

/**
 * The sums for the calls of one provider, model and kind. prom-client hashes the labels at each increment, which costs
 * more than the rest of an observation, so its counters are only filled when Prometheus asks.
 */
type Counts = {
  labels: Record<(typeof ofModel)[number], string>;
  outcomes: Record<CallOutcome, number>;
  tokens: { input: number; cached: number; output: number; reasoning: number };
  dollars: number;
};

/**
 * Metrics of the calls of this process by provider, model and kind (live, batch). Clients choose model names, so a
 * model gets a label only after one of its calls has succeeded, within the limits above.
 */
export function createCallMetrics(): CallMetrics {
  const registers: Registry[] = [];
  const calls: Counter = new Counter({
    name: 'sluice_calls_total',
    help: 'Calls by provider, model, kind (live, batch) and outcome (succeeded, refused by this gateway, failed at the provider).',
    labelNames: [...ofModel, 'outcome'],
    registers,
    collect() {
      calls.reset();
      forEachCounts(({ labels, outcomes }) => {
        for (const [outcome, count] of Object.entries(outcomes)) calls.inc({ ...labels, outcome }, count);
      });
    },
  });
  const errors = new Counter({
    name: 'sluice_call_errors_total',
    help: 'Calls that ended with an error, by provider, kind (live, batch) and error code.',
    labelNames: ['provider', 'kind', 'code'],
    registers,
  });
  const durations = new Histogram({
    name: 'sluice_call_duration_seconds',
    help: 'Seconds from the arrival of a call to the end of its answer, with all attempts.',
    labelNames: ofModel,
    buckets: durationBuckets,
    registers,
  });
  const firstEvents = new Histogram({
    name: 'sluice_call_first_event_seconds',
    help: 'Seconds to the first event of a streamed answer: the time to the first token.',
    labelNames: ofModel,
    buckets: durationBuckets,
    registers,
  });
  const tokens: Counter = new Counter({
    name: 'sluice_call_tokens_total',
    help: 'Tokens by type, as reported by providers. Cached tokens are part of input, and reasoning tokens are part of output.',
    labelNames: [...ofModel, 'type'],
    registers,
    collect() {
      tokens.reset();
      forEachCounts((counts) => {
        for (const [type, count] of Object.entries(counts.tokens)) tokens.inc({ ...counts.labels, type }, count);
      });
    },
  });
  const costs: Counter = new Counter({
    name: 'sluice_call_cost_dollars_total',
    help: 'Cost of calls in US dollars, without calls whose cost is unknown (sluice_unpriced_calls_total).',
    labelNames: ofModel,
    registers,
    collect() {
      costs.reset();
      forEachCounts(({ labels, dollars }) => costs.inc(labels, dollars));
    },
  });
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

  const children = new Map<string, Map<string, { live?: Counts; batch?: Counts }>>();
  const modelsOfWorkspace = new Map<string, number>();
  let models = 0;

  /** Whether the model has a separate label, or gets one now. */
  function isNamed(known: ReadonlyMap<string, unknown>, model: string, entry: RequestLogEntry): boolean {
    if (known.has(model)) return true;
    if (classifyCallOutcome(entry) !== 'succeeded' || model.length > modelCharsMax || models >= modelsMax) return false;
    const own = modelsOfWorkspace.get(entry.workspace_id) ?? 0;
    if (own >= modelsOfWorkspaceMax) return false;
    modelsOfWorkspace.set(entry.workspace_id, own + 1);
    models += 1;
    return true;
  }

  function forEachCounts(show: (counts: Counts) => void): void {
    for (const ofProvider of children.values())
      for (const { live, batch } of ofProvider.values()) for (const each of [live, batch]) if (each) show(each);
  }

  function findCounts(provider: string, kind: 'live' | 'batch', entry: RequestLogEntry): Counts {
    let ofProvider = children.get(provider);
    if (ofProvider === undefined) children.set(provider, (ofProvider = new Map()));
    const { model: asked } = entry;
    const model = asked === null ? 'none' : isNamed(ofProvider, asked, entry) ? asked : 'other';
    let ofKinds = ofProvider.get(model);
    if (ofKinds === undefined) ofProvider.set(model, (ofKinds = {}));
    return (ofKinds[kind] ??= {
      labels: { provider, model, kind },
      outcomes: { succeeded: 0, refused: 0, failed: 0 },
      tokens: { input: 0, cached: 0, output: 0, reasoning: 0 },
      dollars: 0,
    });
  }

  const codes = new Set<string>();
  function codeLabel(code: string): string {
    if (codes.has(code)) return code;
    if (codes.size >= errorCodesMax || !errorCode.test(code)) return 'other';
    codes.add(code);
    return code;
  }

  return {
    observe(entry) {
      const { kind, status, error_code: code, cache_status: cacheStatus } = entry;
      if (kind === 'imported') return;
      const provider = entry.provider === null ? 'none' : (findProvider(entry.provider)?.id ?? 'other');
      const counts = findCounts(provider, kind, entry);
      const { labels, tokens: sums } = counts;
      counts.outcomes[classifyCallOutcome(entry)] += 1;
      if (entry.duration_ms >= 0) durations.observe(labels, entry.duration_ms / 1_000);
      if (entry.first_event_ms !== null && entry.first_event_ms >= 0)
        firstEvents.observe(labels, entry.first_event_ms / 1_000);
      sums.input += plausible(entry.input_tokens);
      sums.cached += plausible(entry.cached_tokens);
      sums.output += plausible(entry.output_tokens);
      sums.reasoning += plausible(entry.reasoning_tokens);
      const cents = Number(entry.cost);
      if (cents > 0 && Number.isFinite(cents)) counts.dollars += cents / 100;
      if (code !== null) errors.inc({ provider, kind, code: codeLabel(code) });
      if (cacheStatus !== null) {
        const result = cacheStatus.toLowerCase();
        cacheAnswers.inc({ provider, result: cacheResults.has(result) ? result : 'other' });
      }
      if (status === 246 || status === 446) verdicts.inc({ provider, verdict: status === 446 ? 'denied' : 'failed' });
    },
    registerIn(registry) {
      for (const metric of [calls, errors, durations, firstEvents, tokens, costs, cacheAnswers, verdicts])
        registry.registerMetric(metric);
    },
  };
}

const cacheResults: ReadonlySet<string> = new Set(['hit', 'miss', 'refresh', 'disabled']);

/**
 * A count that a provider reported; 0 if it is not plausible for a call. prom-client throws for numbers that are not
 * finite.
 */
const plausible = (count: number | null): number =>
  count !== null && count > 0 && count <= tokensOfCallMax ? count : 0;
