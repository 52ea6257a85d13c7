import { performance } from 'node:perf_hooks';
import { sql, type Kysely } from 'kysely';
import { toQueryRange, chooseStep } from '#libs/analytics/choose-buckets.ts';
import { graphs, readCacheSummary, type GraphName } from '#libs/analytics/graphs.ts';
import { groupings, readGroups, readMetadataGroups } from '#libs/analytics/groups.ts';
import { createRunQuery } from '#libs/analytics/run-query.ts';
import type { CallsWanted } from '#libs/analytics/call-source.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createTurns } from '#libs/kernel/sharing/turns.ts';
import { calls, dayMs, days, hourMs, minuteMs, workspaceId, writeMonth } from './analytics-data.ts';
import { ExplainingDriver, type Explained } from './explain-queries.ts';
import { percentile } from './statistics.ts';

export type QueryFigures = {
  name: string;
  kind: Kind;
  /** Of each round, ascending. */
  wallMs: number[];
  /** What Postgres needed by itself: the best of the rounds. */
  explained: Explained;
};

export type AnalyticsFigures = { calls: number; rollupRows: number; queries: QueryFigures[] };

/** Queries over a month of a workspace with 50 million calls (analytics-data.ts). */
export async function measureAnalytics(
  connectionString: string,
  { rounds, logMs }: { rounds: number; logMs: number },
  onProgress: (text: string) => void,
): Promise<AnalyticsFigures> {
  const logger = createLogger({ name: 'bench', level: 'error' });
  const pool = createPool(
    { connectionString, applicationName: 'sluice-bench', statementTimeoutMs: 0, transactionTimeoutMs: 0 },
    logger,
  );
  const explain: { sink: Explained[] | null } = { sink: null };
  const db = createDatabase(pool, (config) => new ExplainingDriver(config, explain));
  try {
    const now = Math.floor(Date.now() / dayMs) * dayMs + 13 * hourMs + 17 * minuteMs + 12_345;
    onProgress('analytics: rollups of 50 million calls');
    await writeMonth(db, { now, logMs });
    const { rows } = await sql<{ rows: number }>`
      select (select count(*) from call_rollup) + (select count(*) from metadata_rollup)
        + (select count(*) from value_rollup) as rows`.execute(db);
    const turns = createTurns({ runningMax: 4, waitingMax: 64 }, 'queries');
    const runQuery = createRunQuery({ db, now: () => now, turns, timeoutMs: 10_000 });
    const queries: QueryFigures[] = operations.map(({ name, kind }) => ({
      name,
      kind,
      wallMs: [],
      explained: nothing,
    }));
    for (let round = -1; round < rounds; round += 1) {
      onProgress(`analytics: round ${round + 1} of ${rounds}`);
      // A period that ends now and begins at any second of a minute, as dashboards ask for it.
      const range = toQueryRange({
        time_of_generation_min: new Date(now - days * dayMs + round * 1_234),
        time_of_generation_max: new Date(now),
      });
      for (const [index, { read }] of operations.entries()) {
        const ask = () => runQuery(workspaceId, (tx, kept) => read(tx, { filters: {}, workspaceId, range, kept }));
        const startedMs = performance.now();
        await ask();
        const durationMs = performance.now() - startedMs;
        const figures = queries[index];
        if (round < 0 || figures === undefined) continue; // the first one warms up
        figures.wallMs.push(durationMs);
        explain.sink = [];
        await ask();
        const found = addUp(explain.sink);
        if (round === 0 || found.executionMs < figures.explained.executionMs) figures.explained = found;
        explain.sink = null;
      }
    }
    for (const { wallMs } of queries) wallMs.sort((a, b) => a - b);
    return { calls, rollupRows: rows[0]?.rows ?? 0, queries };
  } finally {
    await db.destroy();
  }
}

const nothing: Explained = { executionMs: 0, planningMs: 0, rows: 0, pages: 0 };

const addUp = (all: readonly Explained[]): Explained =>
  all.reduce(
    (sum, each) => ({
      executionMs: sum.executionMs + each.executionMs,
      planningMs: sum.planningMs + each.planningMs,
      rows: sum.rows + each.rows,
      pages: sum.pages + each.pages,
    }),
    nothing,
  );

/** The figures of several queries together, in milliseconds. */
export function summarise(queries: readonly QueryFigures[]): { p50Ms: number; p95Ms: number; maxMs: number } {
  const all = queries.flatMap(({ wallMs }) => wallMs).toSorted((a, b) => a - b);
  return { p50Ms: percentile(all, 0.5), p95Ms: percentile(all, 0.95), maxMs: all.at(-1) ?? Number.NaN };
}

export const kinds = ['graph', 'graph with one filter', 'graph with several filters', 'groups', 'feedback'] as const;
type Kind = (typeof kinds)[number];
type Wanted = Parameters<Parameters<ReturnType<typeof createRunQuery>>[1]>[1];
type Read = (db: Kysely<Database>, wanted: CallsWanted & { kept: Wanted }) => Promise<unknown>;
type Operation = { name: string; kind: Kind; read: Read };

const graph = (kind: Kind, name: GraphName, filters: CallsWanted['filters'] = {}, of = ''): Operation => ({
  name: `${name}${of}`,
  kind,
  read: (db, wanted) => graphs[name](db, { ...wanted, filters, stepMs: chooseStep(wanted.range, wanted.kept) }),
});
const one = (name: GraphName, of: string, filters: CallsWanted['filters']): Operation =>
  graph('graph with one filter', name, filters, of);
const several = (name: GraphName, of: string, filters: CallsWanted['filters']): Operation =>
  graph('graph with several filters', name, filters, of);
const groups = (name: string, read: Read): Operation => ({ name, kind: 'groups', read });

const user = { metadata: { _user: ['user_7'] } };
const team = { metadata: { team: ['team_3'] } };
const model = { ai_model: ['model_1'] };

const operations: readonly Operation[] = [
  ...(Object.keys(graphs) as GraphName[]).map((name) =>
    graph(name.startsWith('feedbacks') ? 'feedback' : 'graph', name),
  ),
  { name: 'summary/cache', kind: 'graph', read: readCacheSummary },
  one('cost', ' of a key', { api_key_ids: ['key_3'] }),
  one('latency', ' of a model', model),
  one('cost', ' of a user', user),
  one('latency', ' of a team', team),
  one('errors/stacks', ' of a team', team),
  one('users', ' of a model', model),
  several('latency', ' of a provider and model', { ai_org_model: ['provider_1__model_1'] }),
  several('cost', ' of a user with a model', { ...user, ...model }),
  several('latency', ' of a team with a model', { ...team, ...model }),
  several('requests/rescued', ' of a key with a model', { api_key_ids: ['key_1'], ...model }),
  groups('groups/users', (db, wanted) => readGroups(db, wanted, groupings.users, {})),
  groups('groups/ai-models', (db, wanted) => readGroups(db, wanted, groupings['ai-models'], {})),
  groups('groups/api_key with quantiles', (db, wanted) =>
    readGroups(db, wanted, groupings.api_key, { columns: ['requests', 'p95_latency', 'p99_latency'] }),
  ),
  groups('groups/metadata/team', (db, wanted) => readMetadataGroups(db, wanted, 'team', {})),
  groups('groups/ai-models of a team', (db, wanted) =>
    readGroups(db, { ...wanted, filters: team }, groupings['ai-models'], {}),
  ),
];
