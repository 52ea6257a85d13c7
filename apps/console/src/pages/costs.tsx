import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { graphQuery, groupQuery, ofSimulator, periods, toPeriod, type Group, type Period } from '../analytics.ts';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { serverUrl } from '../api/server-url.ts';
import { count, dateTime, duration, money, moneyOf, percent, short } from '../format.ts';
import { AsCurl, Badge, Card, Code, Empty, PageHead, Progress, Shown, Tile } from '../parts/basics.tsx';
import { bars, GraphCard, PeriodSelect } from '../parts/graphs.tsx';
import { DataTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';

/** The ways to group costs, and the member of a group that holds its name. */
const groupings: Readonly<Record<string, { text: string; names: readonly string[] }>> = {
  'ai-models': { text: 'model', names: ['ai_model'] },
  api_key: { text: 'key', names: ['api_key_name', 'api_key'] },
  users: { text: 'user', names: ['user'] },
  virtual_key: { text: 'virtual key', names: ['virtual_key'] },
  provider: { text: 'provider', names: ['provider'] },
  config: { text: 'config', names: ['config'] },
  prompt: { text: 'prompt', names: ['prompt'] },
};

/** Costs by group, and the remaining budgets. */
export function Costs() {
  const search = useSearch({ strict: false }) as Search;
  const period = search.period === undefined ? '7d' : toPeriod(search.period);
  const navigate = useNavigate();
  const show = (change: object) => void navigate({ to: '/costs', search: { ...search, ...change } });
  const cost = useQuery(graphQuery('cost', period));
  const promptCache = useQuery(graphQuery('prompt-cache', period));
  const { total = 0, avg, unpriced } = cost.data?.summary ?? {};
  const simulated = useQuery(graphQuery('cost', period, ofSimulator)).data?.summary.total ?? 0;
  const shown = (cents: number | undefined) => moneyOf(cents, total === 0 ? 0 : ((cents ?? 0) * simulated) / total);
  return (
    <div className="stack">
      <PageHead
        title="Cost and limits"
        text="Costs follow the price table and your overrides. Calls without a known price are counted separately and not included in the cost."
      >
        <PeriodSelect period={period} onChange={(next) => show({ period: next })} />
      </PageHead>
      <div className="tiles">
        <Tile label="Cost" value={shown(cost.data?.summary.total)} />
        <Tile label="Cost per call" value={shown(avg)} note="average" />
        <Tile label="Unpriced" value={count(unpriced)} note="calls" />
        <Tile
          label="Projected cost"
          value={total === 0 ? '–' : shown((total / periods[period].ms) * 30 * 86_400_000)}
          note="for 30 days"
        />
        <Tile
          label="Saved by prompt caches"
          value={money(promptCache.data?.summary.saved)}
          note={`${short(promptCache.data?.summary.cached_tokens)} tokens read`}
        />
      </div>
      <GraphCard
        title="Cost over time"
        query={cost}
        series={({ data_points: points }) => [bars('cost', '--accent', points, (point) => point.total)]}
        format={money}
        summary={({ summary }) => `${shown(summary.total)} in total`}
      />
      <GraphCard
        title="Prompt caches of providers"
        query={promptCache}
        series={({ data_points: points }) => [
          bars('prompt tokens', '--accent', points, (point) => point.prompt_tokens),
          bars('read from a cache', '--good', points, (point) => point.cached_tokens),
          bars('written to a cache', '--warn', points, (point) => point.cache_write_tokens),
        ]}
        format={short}
        summary={({ summary }) =>
          `${percent(summary.cached_tokens, summary.prompt_tokens)} of prompt tokens were read from a cache, which saved ${money(summary.saved)}`
        }
      />
      <GroupedCosts search={search} show={show} period={period} total={total} />
      <Budgets />
    </div>
  );
}

type Search = { period?: string; by?: string; metadata?: string };

function GroupedCosts({
  search: { by: wanted = '', metadata = '' },
  show,
  period,
  total,
}: {
  search: Search;
  show: (change: object) => void;
  period: Period;
  total: number;
}) {
  const by = wanted in groupings ? wanted : 'ai-models';
  const path = metadata === '' ? by : `metadata/${encodeURIComponent(metadata)}`;
  const names = metadata === '' ? (groupings[by]?.names ?? []) : ['metadata_value', metadata];
  const order = { orderBy: 'cost', limit: 50 };
  const groups = useQuery(groupQuery(path, period, order));
  const simulated = useQuery(groupQuery(path, period, { ...order, filters: ofSimulator }));
  const simulatedOf = new Map(simulated.data?.data.map((row) => [nameOf(row, names), row.cost]));
  return (
    <>
      <Card title="Cost by group" flush aside={<GroupSelect by={by} metadata={metadata} show={show} />}>
        <Shown query={groups}>
          {({ data }) =>
            data.length === 0 ? (
              <Empty title="No calls in this period" />
            ) : (
              <DataTable
                label="Cost by group"
                rows={data}
                keyOf={(row) => nameOf(row, names)}
                columns={[
                  { head: 'Name', isLong: true, cell: (row) => <code>{nameOf(row, names)}</code> },
                  { head: 'Calls', cell: (row) => count(row.requests), isNumber: true },
                  { head: 'Tokens', cell: (row) => short(row['total_tokens'] as number | undefined), isNumber: true },
                  {
                    head: 'Cost',
                    cell: (row) => moneyOf(row.cost, simulatedOf.get(nameOf(row, names))),
                    isNumber: true,
                  },
                  { head: 'Share', cell: (row) => percent(row.cost ?? 0, total), isNumber: true },
                ]}
              />
            )
          }
        </Shown>
      </Card>
      <AsCurl path={`/v1/analytics/groups/${path}?order_by=cost&time_of_generation_min=…&time_of_generation_max=…`} />
    </>
  );
}

function GroupSelect({ by, metadata, show }: { by: string; metadata: string; show: (change: object) => void }) {
  const choose = (chosen: string): void => show({ by: chosen, metadata: chosen === 'metadata' ? 'team' : undefined });
  return (
    <div className="row">
      <select
        aria-label="Grouped by"
        value={metadata === '' ? by : 'metadata'}
        onChange={(event) => choose(event.target.value)}
      >
        {Object.entries(groupings).map(([name, { text }]) => (
          <option key={name} value={name}>
            by {text}
          </option>
        ))}
        <option value="metadata">by metadata</option>
      </select>
      {metadata === '' ? null : (
        <input
          aria-label="Metadata key"
          defaultValue={metadata}
          onBlur={(event) => show({ metadata: event.target.value.trim() || undefined })}
        />
      )}
    </div>
  );
}

const nameOf = (row: Group, names: readonly string[]): string => {
  if (row.is_other === true) return 'all others';
  for (const name of names) if (typeof row[name] === 'string') return row[name];
  return 'none';
};

type Policy = Answer<'/v1/policies/usage-limits'>['data'][number];

function Budgets() {
  const isAllowed = useMay('policies.read');
  const policies = useQuery({
    queryKey: ['usage_limit_policy', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/policies/usage-limits', { params: { query } }))),
    enabled: isAllowed,
  });
  if (!isAllowed) return null;
  return (
    <Card title="Budgets">
      <Shown query={policies}>
        {({ data }) =>
          data.length === 0 ? (
            <Empty title="No budgets yet">
              <p>A budget limits the cost or tokens of calls, for example separately for each team, key or model.</p>
              <Code label="10 dollars per month for each team" value={firstBudget} />
            </Empty>
          ) : (
            <div className="stack">
              {data.map((policy) => (
                <Budget key={policy.id} policy={policy} />
              ))}
            </div>
          )
        }
      </Shown>
    </Card>
  );
}

const firstBudget = `curl ${serverUrl()}/v1/policies/usage-limits -H "authorization: Bearer $SLUICE_API_KEY" -H 'content-type: application/json' \\
  -d '{"name": "10 dollars per month for each team", "type": "cost", "credit_limit": 1000, "periodic_reset": "monthly",
       "conditions": [], "group_by": [{"key": "metadata.team"}]}'`;

/** One budget: how much each of its counters has used, how much is left, and when it will be used up at this pace. */
function Budget({ policy }: { policy: Policy }) {
  const entities = useQuery({
    // Read again when there are new calls, because those change the counters.
    queryKey: ['calls', 'entities', policy.id],
    queryFn: () =>
      answerOf(
        api.GET('/v1/policies/usage-limits/{id}/entities', {
          params: { path: { id: policy.id }, query: { page_size: 20 } },
        }),
      ),
  });
  const amount = (value: number): string => (policy.type === 'cost' ? money(value) : `${short(value)} tokens`);
  return (
    <section aria-label={policy.name ?? policy.id}>
      <h3>
        <bdi>{policy.name ?? policy.id}</bdi>: {amount(policy.credit_limit)}
        {policy.periodic_reset === null ? '' : `, ${policy.periodic_reset}`}
        {policy.next_usage_reset_at === null ? '' : `, resets ${dateTime(policy.next_usage_reset_at)}`}
      </h3>
      <Shown query={entities}>
        {({ data }) =>
          data.length === 0 ? (
            <p className="muted">No usage yet.</p>
          ) : (
            <DataTable
              label={`Counters of ${policy.name ?? policy.id}`}
              rows={data}
              keyOf={({ id }) => id}
              columns={[
                {
                  head: 'For',
                  isLong: true,
                  cell: ({ value_key: value }) => <code>{value.endsWith('=') ? `${value}(none)` : value}</code>,
                },
                {
                  head: 'Used',
                  cell: ({ current_usage: used, value_key: value }) => (
                    <Progress
                      done={Math.min(used, policy.credit_limit)}
                      failed={0}
                      total={policy.credit_limit}
                      label={`used by ${value}`}
                    />
                  ),
                },
                {
                  head: 'Left',
                  cell: ({ current_usage: used }) => amount(Math.max(0, policy.credit_limit - used)),
                  isNumber: true,
                },
                {
                  head: 'Forecast',
                  cell: ({ current_usage: used }) => <span className="nowrap">{endText(policy, used)}</span>,
                },
                {
                  head: 'State',
                  cell: ({ status, current_usage: used }) => {
                    if (status === 'exhausted') return <Badge tone="bad">used up</Badge>;
                    if (isAlerted(policy, used)) return <Badge tone="warn">over {policy.alert_threshold}%</Badge>;
                    return <Badge tone="good">open</Badge>;
                  },
                },
              ]}
            />
          )
        }
      </Shown>
    </section>
  );
}

const isAlerted = ({ alert_threshold: threshold, credit_limit: limit }: Policy, used: number): boolean =>
  threshold !== null && used >= (limit * threshold) / 100;

/** When a budget will be used up at the pace since its last reset. */
function endText(
  { credit_limit: limit, last_reset_at: reset, created_at: created, next_usage_reset_at: next }: Policy,
  used: number,
): string {
  const sinceMs = Date.now() - Date.parse(reset ?? created);
  if (used >= limit) return 'used up';
  if (used === 0 || sinceMs < 60_000) return '–';
  const leftMs = ((limit - used) / used) * sinceMs;
  if (next !== null && Date.now() + leftMs > Date.parse(next)) return 'lasts until the reset';
  return `used up in ${duration(leftMs)}`;
}
