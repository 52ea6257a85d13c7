import { useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { graphQuery, groupQuery, ofSimulator, periods, toPeriod, type Period } from '../analytics.ts';
import { answerOf, api } from '../api/client.ts';
import { count, milliseconds, money, percent, short } from '../format.ts';
import { Ago, Badge, Card, Empty, PageHead, Shown, Tile } from '../parts/basics.tsx';
import { Chart } from '../parts/chart.tsx';
import { DataTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { batchesQuery } from './batch-parts.tsx';

/** Calls, errors, latency, tokens and cost, now and over time, and the current problems. */
export function Overview() {
  const { period: chosen } = useSearch({ strict: false }) as { period?: string };
  const period = toPeriod(chosen);
  const navigate = useNavigate();
  const requests = useQuery(graphQuery('requests', period));
  const errors = useQuery(graphQuery('errors', period));
  const latency = useQuery(graphQuery('latency', period));
  const tokens = useQuery(graphQuery('tokens', period));
  const cost = useQuery(graphQuery('cost', period));
  const simulated = useQuery(graphQuery('cost', period, ofSimulator)).data?.summary.total ?? 0;
  const total = requests.data?.summary.total ?? 0;
  const failed = errors.data?.summary.total ?? 0;
  const times = (points: { timestamp: string }[] | undefined): number[] =>
    (points ?? []).map(({ timestamp }) => Date.parse(timestamp) / 1_000);

  return (
    <div className="stack">
      <PageHead title="Overview" text="All calls of this workspace, both live and in batches.">
        <label className="row">
          <span className="hidden">Period</span>
          <select
            value={period}
            onChange={(event) => void navigate({ to: '/', search: { period: event.target.value } })}
          >
            {Object.entries(periods).map(([name, { text }]) => (
              <option key={name} value={name}>
                {text}
              </option>
            ))}
          </select>
        </label>
      </PageHead>
      <Problems />
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
              : `${percent(failed, total)} of calls: ${short(errors.data?.summary.at_provider)} at providers, ${short(errors.data?.summary.refused)} rejected by the gateway`
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
            cost.data?.summary.unpriced
              ? `${short(cost.data.summary.unpriced)} calls without a known price`
              : cost.data && (simulated > 0 ? `${money(simulated)} of it simulated` : 'at list prices')
          }
        />
      </div>
      {requests.data !== undefined && total === 0 ? (
        <Card>
          <Empty title="No calls in this period">
            <p>
              Select a longer period, or make your first call. The provider <code>simulator</code> behaves like a real
              one, and its costs are not billed. Run a batch or send a call from the playground, and this page updates
              automatically.
            </p>
            <Link to="/batches/new" className="button primary">
              Run a batch
            </Link>
          </Empty>
        </Card>
      ) : null}
      {requests.data !== undefined && total === 0 ? null : (
        <div className="columns charts">
          <Card title="Calls and errors">
            <Shown query={requests}>
              {({ data_points: points }) => (
                <Chart
                  times={times(points)}
                  series={[
                    {
                      label: 'calls',
                      values: points.map((point) => point.total || null),
                      color: '--accent',
                      asBars: true,
                    },
                    {
                      label: 'rejected by the gateway',
                      values: (errors.data?.data_points ?? []).map((point) => point.total || null),
                      color: '--warn',
                      asBars: true,
                    },
                    {
                      label: 'failed at the provider',
                      values: (errors.data?.data_points ?? []).map((point) => point.at_provider || null),
                      color: '--bad',
                      asBars: true,
                    },
                  ]}
                  format={short}
                  summary={`${count(total)} calls, of which ${count(errors.data?.summary.at_provider ?? 0)} failed at the provider and ${count(errors.data?.summary.refused ?? 0)} were rejected by the gateway`}
                />
              )}
            </Shown>
          </Card>
          <Card title="Latency">
            <Shown query={latency}>
              {({ data_points: points, summary }) => (
                <Chart
                  times={times(points)}
                  series={[
                    { label: 'median', values: points.map((point) => point.p50 || null), color: '--accent' },
                    { label: 'p99', values: points.map((point) => point.p99 || null), color: '--warn' },
                  ]}
                  format={milliseconds}
                  summary={`Median ${milliseconds(summary.p50)}, 99th percentile ${milliseconds(summary.p99)}`}
                />
              )}
            </Shown>
          </Card>
          <Card title="Tokens">
            <Shown query={tokens}>
              {({ data_points: points, summary }) => (
                <Chart
                  times={times(points)}
                  series={[
                    {
                      label: 'tokens',
                      values: points.map((point) => point.total || null),
                      color: '--accent',
                      asBars: true,
                    },
                  ]}
                  format={short}
                  summary={`${count(summary.total)} tokens`}
                />
              )}
            </Shown>
          </Card>
          <Card title="Cost">
            <Shown query={cost}>
              {({ data_points: points, summary }) => (
                <Chart
                  times={times(points)}
                  series={[
                    {
                      label: 'cost',
                      values: points.map((point) => point.total || null),
                      color: '--accent',
                      asBars: true,
                    },
                  ]}
                  format={money}
                  summary={`${money(summary.total)} in total`}
                />
              )}
            </Shown>
          </Card>
        </div>
      )}
      <Models period={period} />
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
