import { Big } from 'big.js';
import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { userKey } from './aggregate-calls.ts';
import { callSource, type CallsWanted } from './call-source.ts';
import { readFeedbackModels, readFeedbackPoints, readFeedbackScores } from './feedback-graphs.ts';
import { addTotals, countByPoint, countValues, noCalls, listPoints, readPoints, type Totals } from './read-totals.ts';

/** The calls of a graph, with the distance of its points. */
export type GraphWanted = CallsWanted & { stepMs: number };
type Graph = { summary: object; data_points: object[] };
type ReadGraph = (db: Kysely<Database>, wanted: GraphWanted) => Promise<Graph>;

const average = (sum: number, count: number): number => (count === 0 ? 0 : round(sum / count));
const percent = (part: number, whole: number): number => (whole === 0 ? 0 : round((100 * part) / whole));
/** Six digits after the point. For values that are not sums, further digits would only show how numbers are stored. */
const round = (value: number): number => Math.round(value * 1e6) / 1e6;
const timestampOf = (point: number) => ({ timestamp: new Date(point).toISOString() });

/** A graph whose points and summary are the same function of the totals of their calls. */
const ofTotals =
  (view: (totals: Totals) => object, withLatency = false): ReadGraph =>
  async (db, wanted) => {
    const points = await readPoints(db, wanted, withLatency);
    return {
      summary: view(addTotals(points.values())),
      data_points: listPoints(wanted).map((point) => ({
        ...timestampOf(point),
        ...view(points.get(point) ?? noCalls()),
      })),
    };
  };

const latencyOf = ({ latency, durationUs, requests }: Totals): object => ({
  avg: average(durationUs / 1_000, requests),
  p50: round(latency.quantile(0.5)),
  p90: round(latency.quantile(0.9)),
  p99: round(latency.quantile(0.99)),
});

const costOf = ({ cost, requests, unpriced }: Totals): object => ({
  total: cost.toNumber(),
  avg: requests === 0 ? 0 : cost.div(requests).round(6).toNumber(),
  unpriced,
});

const users: ReadGraph = async (db, wanted) => {
  const found = await countValues(db, { ...wanted, metadataKey: userKey });
  return {
    summary: { total: found.values },
    data_points: listPoints(wanted).map((point) => ({
      ...timestampOf(point),
      total: found.points.get(point)?.values ?? 0,
    })),
  };
};

const usersRequests: ReadGraph = async (db, wanted) => {
  const found = await countValues(db, { ...wanted, metadataKey: userKey });
  const view = ({ values, requests }: { values: number; requests: number }) => ({
    total: requests,
    unique: values,
    avg: average(requests, values),
  });
  return {
    summary: view(found),
    data_points: listPoints(wanted).map((point) => ({
      ...timestampOf(point),
      ...view(found.points.get(point) ?? { values: 0, requests: 0 }),
    })),
  };
};

const errorStacks: ReadGraph = async (db, wanted) => {
  const counts = await countByPoint(db, wanted, 'status');
  const byPoint = Map.groupBy(counts, ({ point }) => point);
  return {
    summary: { total: counts.reduce((sum, { requests }) => sum + requests, 0) },
    data_points: listPoints(wanted).map((point) => ({
      ...timestampOf(point),
      stats: (byPoint.get(point) ?? []).map(({ value, requests }) => ({
        response_status_code: value,
        count: requests,
      })),
    })),
  };
};

const statusCodes: ReadGraph = async (db, wanted) => {
  const counts = new Map<number, number>();
  for (const { value, requests } of await countByPoint(db, wanted, 'status')) {
    counts.set(value, (counts.get(value) ?? 0) + requests);
  }
  const points = [...counts].map(([status_code, count]) => ({ status_code, count }));
  return {
    summary: {
      total_errors: points.reduce((sum, { count }) => sum + count, 0),
      unique_error_codes: points.length,
    },
    data_points: points.toSorted((a, b) => b.count - a.count || a.status_code - b.status_code),
  };
};

const rescued: ReadGraph = async (db, wanted) => {
  const retried = Map.groupBy(await countByPoint(db, wanted, 'retries'), ({ point }) => point);
  const fallen = Map.groupBy(await countByPoint(db, wanted, 'fallback'), ({ point }) => point);
  const sumOf = (counts: readonly { requests: number }[] = []): number =>
    counts.reduce((sum, { requests }) => sum + requests, 0);
  return {
    summary: { retry: sumOf([...retried.values()].flat()), fallback: sumOf([...fallen.values()].flat()) },
    data_points: listPoints(wanted).map((point) => ({
      ...timestampOf(point),
      retry: (retried.get(point) ?? []).map(({ value, requests }) => ({ retry_success_count: value, count: requests })),
      fallback: sumOf(fallen.get(point)),
    })),
  };
};

const hitRate: ReadGraph = async (db, wanted) => {
  const points = await readPoints(db, wanted);
  const sum = addTotals(points.values());
  let saved = new Big(0);
  return {
    summary: { total: sum.hits, rate: percent(sum.hits, sum.requests) },
    data_points: listPoints(wanted).map((point) => {
      const { hits, requests, savedCost } = points.get(point) ?? noCalls();
      saved = saved.plus(savedCost);
      return {
        ...timestampOf(point),
        simple_hits: hits,
        semantic_hits: 0,
        rate: percent(hits, requests),
        cumulative_simple_cache_savings: saved.toNumber(),
        cumulative_semantic_cache_savings: 0,
      };
    }),
  };
};

const feedbackTotals: ReadGraph = async (db, wanted) => {
  const { points, count } = await readFeedbackPoints(db, wanted);
  return {
    summary: { total: count },
    data_points: listPoints(wanted).map((point) => ({ ...timestampOf(point), total: points.get(point)?.count ?? 0 })),
  };
};

const feedbackWeighted: ReadGraph = async (db, wanted) => {
  const { points, weighted } = await readFeedbackPoints(db, wanted);
  return {
    summary: { avg: round(weighted) },
    data_points: listPoints(wanted).map((point) => ({
      ...timestampOf(point),
      avg: round(points.get(point)?.weighted ?? 0),
    })),
  };
};

const feedbackScores: ReadGraph = async (db, wanted) => {
  const scores = await readFeedbackScores(db, wanted);
  return { summary: { total: scores.reduce((sum, { total }) => sum + total, 0) }, data_points: scores };
};

const feedbackModels: ReadGraph = async (db, wanted) => {
  const models = await readFeedbackModels(db, wanted);
  return {
    summary: {},
    data_points: models.map(({ model, count, weighted }) => ({
      ai_model: model,
      total: count,
      avg_weighted_feedback: round(weighted),
    })),
  };
};

/** The graphs, by the last part of their path. */
export const graphs = {
  requests: ofTotals(({ requests }) => ({ total: requests })),
  cost: ofTotals(costOf),
  latency: ofTotals(latencyOf, true),
  tokens: ofTotals(({ inputTokens, outputTokens, requests }) => ({
    total: inputTokens + outputTokens,
    avg: average(inputTokens + outputTokens, requests),
  })),
  'prompt-cache': ofTotals(({ inputTokens, cachedTokens, cacheWriteTokens, promptCacheSaved }) => ({
    prompt_tokens: inputTokens,
    cached_tokens: cachedTokens,
    cache_write_tokens: cacheWriteTokens,
    cached_rate: percent(cachedTokens, inputTokens),
    saved: promptCacheSaved.toNumber(),
  })),
  users,
  'users/requests': usersRequests,
  errors: ofTotals(({ failed, refused }) => ({ total: failed, refused, at_provider: failed - refused })),
  'errors/rate': ofTotals(({ failed, requests }) => ({ rate: percent(failed, requests) })),
  'errors/stacks': errorStacks,
  'errors/status-codes': statusCodes,
  'requests/rescued': rescued,
  'cache/hit-rate': hitRate,
  'cache/latency': ofTotals(({ hits, hitDurationUs }) => ({ avg: average(hitDurationUs / 1_000, hits) })),
  feedbacks: feedbackTotals,
  'feedbacks/scores': feedbackScores,
  'feedbacks/weighted': feedbackWeighted,
  'feedbacks/ai-models': feedbackModels,
} as const satisfies Record<string, ReadGraph>;
export type GraphName = keyof typeof graphs;

/**
 * The effect of the cache: its answers, how long they took (ms), and by how many per cent that is shorter than without
 * it.
 */
export async function readCacheSummary(db: Kysely<Database>, wanted: CallsWanted): Promise<object> {
  const { rows } = await sql<{ hits: number; hit_us: number; requests: number; others_us: number }>`
    select coalesce(sum(hits), 0)::bigint as hits, coalesce(sum(hit_duration_us), 0)::bigint as hit_us,
      coalesce(sum(requests), 0)::bigint as requests,
      coalesce(sum(duration_us - hit_duration_us), 0)::bigint as others_us
    from (${callSource(wanted)}) as call`.execute(db);
  const { hits = 0, hit_us = 0, requests = 0, others_us = 0 } = rows[0] ?? {};
  const hitMs = average(hit_us / 1_000, hits);
  const otherMs = average(others_us / 1_000, requests - hits);
  return {
    hits,
    avg_latency: hitMs,
    total_requests: requests,
    cache_speedup: hits === 0 || otherMs === 0 ? 0 : percent(otherMs - hitMs, otherMs),
  };
}
