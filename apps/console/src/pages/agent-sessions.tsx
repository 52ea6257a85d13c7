import { useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { groupQuery, ofSimulator, toPeriod, type Group, type Period } from '../analytics.ts';
import { count, dateTime, duration, money, moneyOf, short } from '../format.ts';
import { Ago, AsCurl, Card, Empty, Id, PageHead, Shown, Tile } from '../parts/basics.tsx';
import { PeriodSelect } from '../parts/graphs.tsx';
import { DataTable, type Column } from '../parts/table.tsx';

type Search = { period?: string; session?: string };

/** The sessions of coding agents with their cost, or one of them with its agents. */
export function AgentSessions() {
  const search = useSearch({ strict: false }) as Search;
  const { session } = search;
  const period = search.period === undefined ? '7d' : toPeriod(search.period);
  const navigate = useNavigate();
  const choosePeriod = (next: string): void =>
    void navigate({ to: '/agent-sessions', search: { ...search, period: next } });
  const select = <PeriodSelect period={period} onChange={choosePeriod} />;
  return (
    <div className="stack">
      {session === undefined ? (
        <>
          <PageHead title="Agent sessions" text="The cost of each session of a coding agent, with its sub-agents.">
            {select}
          </PageHead>
          <SessionList period={period} />
        </>
      ) : (
        <>
          <PageHead title="Agent session" text={<Id id={session} />}>
            {select}
            <Link to="/requests" search={{ session_id: session }} className="button">
              Show its requests
            </Link>
            <Link to="/agent-sessions" search={{ period }} className="button">
              All sessions
            </Link>
          </PageHead>
          <OneSession session={session} period={period} />
        </>
      )}
    </div>
  );
}

/** The most that a page shows; the most expensive ones come first. */
const shownMax = 100;
const byCost = { orderBy: 'cost', limit: shownMax };

function SessionList({ period }: { period: Period }) {
  const sessions = useQuery(groupQuery('session', period, byCost));
  const simulated = useSimulated('session', period);
  return (
    <>
      <Card title="Sessions by cost" flush>
        <Shown query={sessions}>
          {({ data, total }) =>
            data.length === 0 ? (
              <Empty title="No sessions in this period">
                <p>
                  Claude Code and Codex name their sessions. Other clients send <code>x-gateway-session-id</code> with
                  each call.
                </p>
              </Empty>
            ) : (
              <>
                <DataTable
                  label="Sessions by cost"
                  rows={data}
                  keyOf={(row) => (row.is_other === true ? '' : textOf(row, 'session_id'))}
                  columns={[
                    {
                      head: 'Session',
                      isLong: true,
                      cell: (row) =>
                        row.is_other === true ? (
                          'all others'
                        ) : (
                          <Link to="/agent-sessions" search={{ period, session: textOf(row, 'session_id') }}>
                            <code>{textOf(row, 'session_id')}</code>
                          </Link>
                        ),
                    },
                    ...figures((row) => simulated.get(textOf(row, 'session_id'))),
                  ]}
                />
                {total > data.length ? (
                  <p className="muted">
                    The {count(data.length)} most expensive of {count(total)} sessions.
                  </p>
                ) : null}
              </>
            )
          }
        </Shown>
      </Card>
      <AsCurl path="/v1/analytics/groups/session?order_by=cost&time_of_generation_min=…&time_of_generation_max=…" />
    </>
  );
}

function OneSession({ session, period }: { session: string; period: Period }) {
  const filters = { session_id: session };
  const whole = useQuery(groupQuery('session', period, { filters })).data?.data[0];
  const agents = useQuery(groupQuery('agent', period, { ...byCost, filters }));
  const simulated = useSimulated('agent', period, filters);
  const simulatedCost = [...simulated.values()].reduce((sum, cost) => sum + cost, 0);
  return (
    <>
      <div className="tiles">
        <Tile label="Cost" value={moneyOf(whole?.cost, simulatedCost)} />
        <Tile label="Calls" value={count(whole?.requests)} note={`${count(numberOf(whole, 'error_count'))} failed`} />
        <Tile
          label="Tokens"
          value={short(numberOf(whole, 'total_tokens'))}
          note={`${short(numberOf(whole, 'cached_tokens'))} from prompt caches, which saved ${money(numberOf(whole, 'prompt_cache_saved'))}`}
        />
        <Tile label="Time in calls" value={whole === undefined ? '–' : duration(numberOf(whole, 'total_latency'))} />
        <Tile
          label="Last call"
          value={whole === undefined ? '–' : <Ago at={textOf(whole, 'last_seen')} />}
          note={whole === undefined ? undefined : `first ${dateTime(textOf(whole, 'first_seen'))}`}
        />
      </div>
      <Card title="Agents" flush>
        <Shown query={agents}>
          {({ data }) =>
            data.length === 0 ? (
              <Empty title="No calls in this period" />
            ) : (
              <DataTable
                label="Agents"
                rows={data}
                keyOf={(row) => textOf(row, 'agent_id')}
                columns={[
                  { head: 'Agent', isLong: true, cell: (row) => <AgentName row={row} session={session} /> },
                  {
                    head: 'Started by',
                    isLong: true,
                    cell: (row) =>
                      row['agent_id'] === null ? '' : <code>{textOf(row, 'parent_agent_id') || 'main agent'}</code>,
                  },
                  ...figures((row) => simulated.get(textOf(row, 'agent_id'))),
                ]}
              />
            )
          }
        </Shown>
      </Card>
      <AsCurl
        path={`/v1/analytics/groups/agent?session_id=${encodeURIComponent(session)}&time_of_generation_min=…&time_of_generation_max=…`}
      />
    </>
  );
}

function AgentName({ row, session }: { row: Group; session: string }) {
  const id = row['agent_id'];
  if (typeof id !== 'string') return 'main agent';
  return (
    <Link to="/requests" search={{ session_id: session, agent_id: id }}>
      <code>{id}</code>
    </Link>
  );
}

/** The columns that both tables have. `simulatedOf`: the part of a cost that is made up. */
const figures = (simulatedOf: (row: Group) => number | undefined): Column<Group>[] => [
  { head: 'Calls', cell: (row) => count(row.requests), isNumber: true },
  { head: 'Tokens', cell: (row) => short(numberOf(row, 'total_tokens')), isNumber: true },
  { head: 'Cost', cell: (row) => moneyOf(row.cost, simulatedOf(row)), isNumber: true },
  { head: 'Time in calls', cell: (row) => duration(numberOf(row, 'total_latency')), isNumber: true },
  { head: 'First call', cell: (row) => dateTime(textOf(row, 'first_seen')) },
  { head: 'Last call', cell: (row) => <Ago at={textOf(row, 'last_seen')} /> },
];

const textOf = (row: Group, name: string): string => {
  const value = row[name];
  return typeof value === 'string' ? value : '';
};
const numberOf = (row: Group | undefined, name: string): number => Number(row?.[name] ?? 0);

/** The cost that simulated calls add to each group, by its name. */
function useSimulated(
  by: 'session' | 'agent',
  period: Period,
  filters: Readonly<Record<string, string>> = {},
): ReadonlyMap<string, number> {
  const { data } = useQuery(groupQuery(by, period, { ...byCost, filters: { ...filters, ...ofSimulator } }));
  return new Map(data?.data.map((row) => [textOf(row, `${by}_id`), row.cost ?? 0]));
}
