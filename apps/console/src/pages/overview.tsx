import { useQuery, type UseQueryResult } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import {
  graphQuery,
  groupQuery,
  ofSimulator,
  periods,
  toPeriod,
  type GraphAnswers,
  type GraphName,
  type Period,
} from '../analytics.ts';
import { answerOf, api } from '../api/client.ts';
import { count, milliseconds, money, percent, short } from '../format.ts';
import { Ago, Badge, Card, Empty, PageHead, Shown, Tile } from '../parts/basics.tsx';
import { bars, GraphCard, PeriodSelect } from '../parts/graphs.tsx';
import { DataTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { batchesQuery } from './batch-parts.tsx';

/** Calls, errors, latency, tokens and cost, now and over time, and the current problems. */
export function Overview() {
  const { period: chosen } = useSearch({ strict: false }) as { period?: string };
  const period = toPeriod(chosen);
  const navigate = useNavigate();
  const graphs = {
    requests: useQuery(graphQuery('requests', period)),
    errors: useQuery(graphQuery('errors', period)),
    latency: useQuery(graphQuery('latency', period)),
    tokens: useQuery(graphQuery('tokens', period)),
    cost: useQuery(graphQuery('cost', period)),
  };
  const hasNoCalls = graphs.requests.data?.summary.total === 0;
  return (
    <div className="stack">
      <PageHead title="Overview" text="All calls of this workspace, both live and in batches.">
        <PeriodSelect period={period} onChange={(next) => void navigate({ to: '/', search: { period: next } })} />
      </PageHead>
      <Problems />
      <Totals graphs={graphs} period={period} />
      {hasNoCalls ? <FirstSteps /> : <Graphs graphs={graphs} />}
      <Models period={period} />
    </div>
  );
}

type GraphQueries = { [Name in Exclude<GraphName, 'prompt-cache'>]: UseQueryResult<GraphAnswers[Name]> };

function Totals({
  graphs: { requests, errors, latency, tokens, cost },
  period,
}: {
  graphs: GraphQueries;
  period: Period;
}) {
  const simulated = useQuery(graphQuery('cost', period, ofSimulator)).data?.summary.total ?? 0;
  const total = requests.data?.summary.total ?? 0;
  const { total: failed = 0, at_provider: atProviders, refused } = errors.data?.summary ?? {};
  const unpriced = cost.data?.summary.unpriced;
  return (
    <div className="tiles">
      <Tile
        label="Calls"
        value={short(requests.data?.summary.total)}
        note={requests.data && perMinute(total, period)}
      />
      <Tile
        label="Errors"
        value={short(errors.data?.summary.total)}
        note={
          total === 0
            ? undefined
            : `${percent(failed, total)} of calls: ${short(atProviders)} at providers, ${short(refused)} rejected by the gateway`
        }
      />
      <Tile
        label="Latency, median"
        value={total === 0 ? '–' : milliseconds(latency.data?.summary.p50)}
        note={total === 0 ? undefined : `99% below ${milliseconds(latency.data?.summary.p99)}`}
      />
      <Tile label="Tokens" value={short(tokens.data?.summary.total)} note="input and output" />
      <Tile
        label="Cost"
        value={money(cost.data?.summary.total)}
        note={
          unpriced
            ? `${short(unpriced)} calls without a known price`
            : cost.data && (simulated > 0 ? `${money(simulated)} of it simulated` : 'at list prices')
        }
      />
    </div>
  );
}

function FirstSteps() {
  return (
    <Card>
      <Empty title="No calls in this period">
        <p>
          Select a longer period, or make your first call. The provider <code>simulator</code> behaves like a real one,
          and its costs are not billed. Run a batch or send a call from the playground, and this page updates
          automatically.
        </p>
        <Link to="/batches/new" className="button primary">
          Run a batch
        </Link>
      </Empty>
    </Card>
  );
}

function Graphs({ graphs: { requests, errors, latency, tokens, cost } }: { graphs: GraphQueries }) {
  const { data_points: failures, summary: { at_provider: atProviders = 0, refused = 0 } = {} } = errors.data ?? {};
  return (
    <div className="columns charts">
      <GraphCard
        title="Calls and errors"
        query={requests}
        series={({ data_points: points }) => [
          bars('calls', '--accent', points, ({ total }) => total),
          bars('rejected by the gateway', '--warn', failures, ({ total }) => total),
          bars('failed at the provider', '--bad', failures, ({ at_provider: failed }) => failed),
        ]}
        format={short}
        summary={({ summary: { total } }) =>
          `${count(total)} calls, of which ${count(atProviders)} failed at the provider and ${count(refused)} were rejected by the gateway`
        }
      />
      <GraphCard
        title="Latency"
        query={latency}
        series={({ data_points: points }) => [
          { label: 'median', values: points.map(({ p50 }) => p50 || null), color: '--accent' },
          { label: 'p99', values: points.map(({ p99 }) => p99 || null), color: '--warn' },
        ]}
        format={milliseconds}
        summary={({ summary: { p50, p99 } }) => `Median ${milliseconds(p50)}, 99th percentile ${milliseconds(p99)}`}
      />
      <GraphCard
        title="Tokens"
        query={tokens}
        series={({ data_points: points }) => [bars('tokens', '--accent', points, ({ total }) => total)]}
        format={short}
        summary={({ summary }) => `${count(summary.total)} tokens`}
      />
      <GraphCard
        title="Cost"
        query={cost}
        series={({ data_points: points }) => [bars('cost', '--accent', points, ({ total }) => total)]}
        format={money}
        summary={({ summary }) => `${money(summary.total)} in total`}
      />
    </div>
  );
}

const perMinute = (total: number, period: Period): string =>
  `${short(Math.round((total / (periods[period].ms / 60_000)) * 10) / 10)} per minute`;

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '–');

function Models({ period }: { period: Period }) {
  const models = useQuery(groupQuery('ai-models', period, { limit: 8 }));
  return (
    <Card title="Models" flush>
      <Shown query={models}>
        {({ data }) =>
          data.length === 0 ? (
            <Empty title="No models were called in this period" />
          ) : (
            <DataTable
              label="Models by number of calls"
              rows={data}
              keyOf={(row) => textOf(row['ai_model'])}
              columns={[
                { head: 'Model', isLong: true, cell: (row) => <code>{textOf(row['ai_model'])}</code> },
                { head: 'Calls', cell: (row) => count(row.requests), isNumber: true },
                { head: 'Tokens', cell: (row) => short(row['total_tokens'] as number | undefined), isNumber: true },
                { head: 'Cost', cell: (row) => money(row.cost), isNumber: true },
              ]}
            />
          )
        }
      </Shown>
    </Card>
  );
}

/** Problems that need attention now: open circuits, and batches that wait or failed today. */
function Problems() {
  const mayReadBatches = useMay('batches.read');
  const mayReadCircuits = useMay('providers.read');
  const batches = useQuery({ ...batchesQuery, enabled: mayReadBatches });
  const circuits = useQuery({
    queryKey: ['calls', 'circuits'],
    queryFn: () => answerOf(api.GET('/v1/admin/circuits')),
    enabled: mayReadCircuits,
    retry: false,
  });
  const dayAgo = Date.now() / 1_000 - 86_400;
  const failed = (batches.data?.data ?? []).filter(
    ({ status, created_at }) => (status === 'failed' || status === 'expired') && created_at > dayAgo,
  );
  const open = circuits.data?.data ?? [];
  if (failed.length + open.length === 0) {
    // Only successfully loaded data is reported as fine.
    const fine = [
      ...(circuits.data === undefined ? [] : ['no open circuits']),
      ...(batches.data === undefined ? [] : ['no batches failed today']),
    ];
    return fine.length === 0 ? null : (
      <div className="note-box good" role="status">
        No problems: {fine.join(', ')}.
      </div>
    );
  }
  return (
    <Card title="Needs attention">
      <ul className="stack" style={{ paddingLeft: 18, margin: 0, gap: 6 }}>
        {open.map(({ id, provider, virtual_key: key, model, reason, state, open_until: until }) => (
          <li key={id}>
            <Badge tone={state === 'open' ? 'bad' : 'warn'}>circuit {state === 'open' ? 'open' : 'half open'}</Badge>{' '}
            {provider} through <code>{key}</code>
            {model === '' ? '' : `, ${model}`}: {reason};{' '}
            {state === 'open' ? (
              <>
                next attempt <Ago at={until * 1_000} />
              </>
            ) : (
              'the next call tests it'
            )}
          </li>
        ))}
        {failed.map(({ id, status, created_at: at }) => (
          <li key={id}>
            <Badge tone="bad">batch {status}</Badge>{' '}
            <Link to="/batches/$id" params={{ id }}>
              {id}
            </Link>
            , <Ago at={at * 1_000} />
          </li>
        ))}
      </ul>
    </Card>
  );
}
