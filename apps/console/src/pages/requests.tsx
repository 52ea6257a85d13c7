import { useInfiniteQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { useCallback, useState, type FormEvent } from 'react';
import { answerOf, api } from '../api/client.ts';
import type { LogRecord } from '../api/types.ts';
import type { paths } from '../../generated/api.ts';
import { count, milliseconds, usdOf } from '../format.ts';
import { AsCurl, At, Badge, Card, Empty, PageHead, Shown } from '../parts/basics.tsx';
import { LongTable, type Column } from '../parts/table.tsx';

const filterNames = [
  'status',
  'kind',
  'model',
  'provider',
  'virtual_key',
  'trace_id',
  'session_id',
  'agent_id',
  'batch_id',
  'metadata',
] as const;
type LogQuery = NonNullable<paths['/v1/logs']['get']['parameters']['query']>;
type Filters = Pick<LogQuery, (typeof filterNames)[number]>;

/** The request log: each live call and each batch line, newest first. */
export function Requests() {
  const search: Record<string, string> = useSearch({ strict: false });
  const filters: Filters = Object.fromEntries(
    filterNames.flatMap((name) => (search[name] === undefined || search[name] === '' ? [] : [[name, search[name]]])),
  );
  const logs = useInfiniteQuery({
    queryKey: ['calls', 'logs', filters],
    queryFn: ({ pageParam }) => {
      const query = { limit: 50, ...filters, ...(pageParam === null ? {} : { after: pageParam }) };
      return answerOf(api.GET('/v1/logs', { params: { query } }));
    },
    initialPageParam: null as string | null,
    getNextPageParam: ({ has_more: hasMore, last_id: lastId }) => (hasMore ? lastId : undefined),
  });
  const { fetchNextPage, hasNextPage, isFetching } = logs;
  const readOn = useCallback(() => {
    if (hasNextPage && !isFetching) void fetchNextPage();
  }, [fetchNextPage, hasNextPage, isFetching]);
  return (
    <div className="stack">
      <PageHead title="Requests" text="All live calls and batch lines, with their cost and duration." />
      <Search key={JSON.stringify(filters)} filters={filters} />
      <Card flush>
        <Shown query={logs}>
          {({ pages }) => {
            const rows = pages.flatMap(({ data }) => data);
            if (rows.length > 0)
              return <LongTable label="Requests" columns={columns} rows={rows} keyOf={({ id }) => id} onEnd={readOn} />;
            return Object.keys(filters).length > 0 ? (
              <Empty title="No matching requests">
                <Link to="/requests">Show all requests</Link>
              </Empty>
            ) : (
              <Empty title="No requests yet">
                <p>
                  Each call appears here moments after its answer. Send one from the playground; calls to the simulator
                  are not billed.
                </p>
                <Link to="/playground" className="button primary">
                  Open the playground
                </Link>
              </Empty>
            );
          }}
        </Shown>
      </Card>
      <AsCurl path={`/v1/logs?${new URLSearchParams({ limit: '50', ...filters })}`} />
    </div>
  );
}

/** The filters, which become part of the address when they are submitted. */
function Search({ filters }: { filters: Filters }) {
  const navigate = useNavigate();
  const [values, setValues] = useState<Filters>(filters);
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    const given = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ''));
    void navigate({ to: '/requests', search: given });
  };
  const field = (name: keyof Filters, text: string, placeholder: string) => (
    <label>
      {text}
      <input
        value={values[name] ?? ''}
        placeholder={placeholder}
        onChange={(event) => setValues({ ...values, [name]: event.target.value.trim() })}
      />
    </label>
  );
  return (
    <form className="filters" onSubmit={submit} role="search">
      <label>
        Status
        <select value={values.status ?? ''} onChange={(event) => setValues({ ...values, status: event.target.value })}>
          <option value="">all</option>
          <option value="error">errors</option>
          <option value="refused">rejected by the gateway</option>
          <option value="failed">failed at the provider</option>
          <option value="2xx">2xx</option>
          <option value="4xx">4xx</option>
          <option value="429">429</option>
          <option value="5xx">5xx</option>
        </select>
      </label>
      <label>
        Kind
        <select
          value={values.kind ?? ''}
          onChange={(event) => setValues({ ...values, kind: event.target.value } as Filters)}
        >
          <option value="">all</option>
          <option value="live">live</option>
          <option value="batch">batch lines</option>
          <option value="imported">imported</option>
        </select>
      </label>
      {field('model', 'Model', '@openai/gpt-5-mini')}
      {field('provider', 'Provider', 'openai')}
      {field('virtual_key', 'Virtual key', 'slug')}
      {field('trace_id', 'Trace ID', '')}
      {field('session_id', 'Session', '')}
      {field('agent_id', 'Agent', '')}
      {field('batch_id', 'Batch', 'batch_…')}
      {field('metadata', 'Metadata', '{"team":"search"}')}
      <button type="submit" className="primary">
        Search
      </button>
    </form>
  );
}

/**
 * The outcome of a call, as one word and a colour. A call that this gateway refused does not count as a failure of the
 * provider.
 */
export function OutcomeBadge({
  record: { status, error_code: code, outcome, cache_status: cache },
}: {
  record: LogRecord;
}) {
  const why = code ?? status ?? 'no answer';
  if (outcome === 'refused') return <Badge tone="warn">refused: {why}</Badge>;
  if (outcome === 'failed') return <Badge tone={status === 429 ? 'warn' : 'bad'}>{why}</Badge>;
  return <Badge tone={cache === 'HIT' ? 'info' : 'good'}>{cache === 'HIT' ? 'cache' : status}</Badge>;
}

const columns: readonly Column<LogRecord>[] = [
  {
    head: 'When',
    cell: ({ id, created_at: at }) => (
      <Link to="/requests/$id" params={{ id }}>
        <At at={at} />
      </Link>
    ),
  },
  { head: 'Outcome', cell: (record) => <OutcomeBadge record={record} /> },
  { head: 'Model', isLong: true, cell: ({ model }) => <code>{model ?? '–'}</code> },
  { head: 'Provider', cell: ({ provider }) => provider ?? '–' },
  { head: 'Kind', cell: ({ kind }) => kind },
  { head: 'Duration', cell: ({ duration_ms: ms }) => milliseconds(ms), isNumber: true },
  {
    head: 'Tokens',
    cell: ({ usage }) => (usage === null ? '–' : `${count(usage.input_tokens)} → ${count(usage.output_tokens)}`),
    isNumber: true,
  },
  { head: 'Cost', cell: ({ cost_usd: cost, provider }) => usdOf(cost, provider === 'simulator'), isNumber: true },
  {
    head: 'Attempts',
    cell: ({ attempts, fallbacks }) => `${attempts}${fallbacks === 0 ? '' : `, ${fallbacks} fallbacks`}`,
    isNumber: true,
  },
  { head: 'Key', cell: ({ api_key_name: name, api_key_id: id }) => name ?? id ?? '–' },
];
