import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { useCallback, useEffect, useState, type FormEvent } from 'react';
import type { paths } from '../../generated/api.ts';
import { answerOf, api } from '../api/client.ts';
import type { Answer, Batch } from '../api/types.ts';
import { bytes, count, milliseconds, usdOf } from '../format.ts';
import { AsCurl, Badge, Card, Code, Dialog, Empty, Facts, Id, Shown } from '../parts/basics.tsx';
import { FormDialog, useChange } from '../parts/changes.tsx';
import { DataTable, LongTable, type Column } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { isOpenBatch } from './batch-parts.tsx';

type Line = Omit<Answer<'/v1/batches/{batch_id}/lines'>['data'][number], 'object'>;
type Details = Answer<'/v1/batches/{batch_id}/lines/{line}'>;
type LineQuery = NonNullable<paths['/v1/batches/{batch_id}/lines']['get']['parameters']['query']>;

const filterNames = ['outcome', 'code', 'status_code', 'model', 'custom_id', 'search'] as const;
type Search = Record<string, string | undefined>;
type Filters = Partial<Record<(typeof filterNames)[number], string>>;

/** The lines of a batch by number (all of them or those that match), and one line with all its details. */
export function Lines({ batch }: { batch: Batch }) {
  const search: Record<string, string> = useSearch({ strict: false });
  const filters: Filters = Object.fromEntries(
    filterNames.flatMap((name) => (search[name] === undefined || search[name] === '' ? [] : [[name, search[name]]])),
  );
  const lines = useInfiniteQuery({
    // Not refreshed with each event of the batch, because there can be hundreds per second; see below.
    queryKey: ['batch lines', batch.id, filters],
    queryFn: ({ pageParam }) => {
      const { status_code: status, outcome, ...texts } = filters;
      const query: LineQuery = {
        limit: 100,
        ...texts,
        ...(status === undefined ? {} : { status_code: Number(status) }),
        ...(outcome === undefined ? {} : { outcome: outcome as LineQuery['outcome'] & string }),
        ...(pageParam === null ? {} : { after: pageParam }),
      };
      return answerOf(api.GET('/v1/batches/{batch_id}/lines', { params: { path: { batch_id: batch.id }, query } }));
    },
    initialPageParam: null as string | null,
    getNextPageParam: ({ has_more: hasMore, last_id: lastId }) => (hasMore ? lastId : undefined),
  });
  const { fetchNextPage, hasNextPage, isFetching, refetch } = lines;
  const readOn = useCallback(() => {
    if (hasNextPage && !isFetching) void fetchNextPage();
  }, [fetchNextPage, hasNextPage, isFetching]);
  const pages = lines.data?.pages.length ?? 0;
  const { completed, failed } = batch.request_counts;
  useEffect(() => {
    // If the user has scrolled far down, the lines are not replaced.
    if (pages > 0 && pages <= 2) void refetch();
  }, [completed, failed, batch.status, pages, refetch]);
  const found = lines.data?.pages.flatMap(({ data }) => data) ?? [];
  const searched = lines.data?.pages.reduce((sum, page) => sum + page.searched_lines, 0) ?? 0;
  return (
    <>
      <LineFilters key={JSON.stringify(filters)} id={batch.id} filters={filters} />
      <Card flush>
        <Shown query={lines}>
          {() =>
            found.length > 0 ? (
              <LongTable
                label="Lines"
                columns={columnsOf(batch.id)}
                rows={found}
                keyOf={({ id }) => id}
                chosen={search['line']}
                onEnd={readOn}
              />
            ) : (
              <Empty title={emptyText(batch, hasNextPage)}>
                {hasNextPage || batch.request_counts.total === 0 ? null : (
                  <Link to="/batches/$id" params={{ id: batch.id }} search={{ tab: 'lines' }}>
                    Show all lines
                  </Link>
                )}
              </Empty>
            )
          }
        </Shown>
        {hasNextPage ? (
          <div className="row" style={{ padding: 12 }} role="status">
            <span className="muted">
              {count(found.length)} found in {count(searched)} of {count(batch.request_counts.total)} lines
            </span>
            <button type="button" disabled={isFetching} onClick={readOn}>
              {isFetching ? 'Searching…' : 'Search more lines'}
            </button>
          </div>
        ) : null}
      </Card>
      {search['line'] === undefined ? null : <LineDialog batch={batch} line={search['line']} filters={filters} />}
      <AsCurl path={`/v1/batches/${batch.id}/lines?${new URLSearchParams({ limit: '100', ...filters })}`} />
    </>
  );
}

function emptyText({ status, request_counts: { total } }: Batch, hasNextPage: boolean): string {
  if (total > 0) return hasNextPage ? 'No matching lines so far' : 'No matching lines';
  return status === 'validating' ? 'The file has not been read yet' : 'The file was rejected, so there are no lines';
}

function LineFilters({ id, filters }: { id: string; filters: Filters }) {
  const navigate = useNavigate();
  const [values, setValues] = useState(filters);
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    const given = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ''));
    void navigate({ to: '/batches/$id', params: { id }, search: { tab: 'lines', ...given } });
  };
  const field = (name: keyof Filters, text: string, placeholder: string) => (
    <label>
      {text}
      <input
        value={values[name] ?? ''}
        placeholder={placeholder}
        onChange={(event) => setValues({ ...values, [name]: event.target.value })}
      />
    </label>
  );
  return (
    <form className="filters" onSubmit={submit} role="search">
      <label>
        Outcome
        <select
          value={values.outcome ?? ''}
          onChange={(event) => setValues({ ...values, outcome: event.target.value })}
        >
          <option value="">all</option>
          <option value="completed">completed</option>
          <option value="failed">failed</option>
          <option value="pending">no result yet</option>
        </select>
      </label>
      {field('code', 'Error code', 'rate_limit_exceeded')}
      {field('status_code', 'Status', '400')}
      {field('model', 'Response model', 'gpt-5-mini')}
      {field('custom_id', 'Custom ID', '')}
      {field('search', 'Text', 'in request or answer')}
      <button type="submit" className="primary">
        Search
      </button>
    </form>
  );
}

const outcomes = { completed: 'good', failed: 'bad', pending: 'plain' } as const;

const columnsOf = (batchId: string): readonly Column<Line>[] => [
  {
    head: 'Line',
    cell: ({ line }) => (
      <Link
        to="/batches/$id"
        params={{ id: batchId }}
        search={(before: Search) => ({ ...before, tab: 'lines', line: String(line) })}
      >
        {count(line)}
      </Link>
    ),
    isNumber: true,
  },
  { head: 'Custom ID', isLong: true, cell: ({ custom_id: id }) => <code>{id ?? '–'}</code> },
  {
    head: 'Outcome',
    cell: ({ outcome, status_code: status, error }) => (
      <Badge tone={outcomes[outcome]}>
        {outcome === 'failed' ? (error?.code ?? status ?? 'failed') : outcome === 'pending' ? 'no result yet' : status}
      </Badge>
    ),
  },
  { head: 'Model', isLong: true, cell: ({ model }) => <code>{model ?? '–'}</code> },
  {
    head: 'Tokens',
    cell: ({ usage }) => (usage === null ? '–' : `${count(usage.input_tokens)} → ${count(usage.output_tokens)}`),
    isNumber: true,
  },
  {
    head: 'Message',
    isLong: true,
    cell: ({ error }) => <span title={error?.message ?? undefined}>{error?.message?.slice(0, 90) ?? ''}</span>,
  },
];

function LineDialog({ batch, line, filters }: { batch: Batch; line: string; filters: Filters }) {
  const navigate = useNavigate();
  const details = useQuery({
    queryKey: ['batch lines', batch.id, 'one', line],
    queryFn: () =>
      answerOf(api.GET('/v1/batches/{batch_id}/lines/{line}', { params: { path: { batch_id: batch.id, line } } })),
  });
  const close = (): void =>
    void navigate({
      to: '/batches/$id',
      params: { id: batch.id },
      search: { tab: 'lines', ...filters },
    });
  return (
    <Dialog title={`Line ${line}`} onClose={close}>
      <Shown query={details}>{(found) => <LineDetails found={found} />}</Shown>
    </Dialog>
  );
}

function LineDetails({ found }: { found: Details }) {
  const { log, error } = found;
  return (
    <>
      <Facts
        rows={[
          ['Custom ID', <code key="id">{found.custom_id ?? '–'}</code>],
          [
            'Outcome',
            <Badge key="outcome" tone={outcomes[found.outcome]}>
              {found.outcome}
            </Badge>,
          ],
          ['Status', found.status_code],
          ['Error', error === null ? null : `${error.code ?? ''} ${error.message ?? ''}`],
          ['Size of the result', found.result_bytes === null ? null : bytes(found.result_bytes)],
          ['Attempts', log === null ? null : count(log.attempts)],
          ['Duration', log === null ? null : milliseconds(log.duration_ms)],
          ['Cost', log === null ? null : usdOf(log.cost_usd, log.provider === 'simulator')],
          [
            'Record',
            log === null ? null : (
              <Link key="log" to="/requests/$id" params={{ id: log.id }}>
                timing
              </Link>
            ),
          ],
          ['Result ID', <Id key="result" id={found.result_id} />],
        ]}
      />
      {found.request === null ? (
        <p className="muted">
          The request cannot be shown because its file was deleted or the line is larger than 1 MiB.
        </p>
      ) : (
        <Code value={found.request} label="Request" />
      )}
      {found.result === null ? (
        <p className="muted">
          {found.outcome === 'pending'
            ? 'This line has no result yet.'
            : 'The result is in the output or error file of the batch.'}
        </p>
      ) : (
        <Code value={found.result} label="Result" />
      )}
    </>
  );
}

/** The causes of failed lines, and a form for a new batch of those lines. */
export function Failures({ batch }: { batch: Batch }) {
  const { failed } = batch.request_counts;
  const failures = useQuery({
    queryKey: ['batch lines', batch.id, 'failures', failed, batch.status],
    queryFn: () => answerOf(api.GET('/v1/batches/{batch_id}/failures', { params: { path: { batch_id: batch.id } } })),
    placeholderData: (previous) => previous,
  });
  const mayRetry = useMay('batches.write') && !isOpenBatch(batch);
  if (batch.status === 'failed' || failures.data?.failed_lines === 0) return null;
  return (
    <Card title="Why lines failed" flush aside={mayRetry ? <Retry batch={batch} /> : null}>
      <Shown query={failures}>
        {({ groups, failed_lines: all, examined_lines: examined, other_lines: others }) => (
          <>
            <DataTable
              label="Causes of failed lines"
              rows={groups}
              keyOf={({ code, status_code: status }) => `${code} ${status}`}
              columns={[
                { head: 'Lines', cell: ({ count: lines }) => count(lines), isNumber: true },
                {
                  head: 'Cause',
                  isLong: true,
                  cell: ({ code, status_code: status }) => (
                    <Link
                      to="/batches/$id"
                      params={{ id: batch.id }}
                      search={{
                        tab: 'lines',
                        outcome: 'failed',
                        ...(code === null ? {} : { code }),
                        ...(status === null ? {} : { status_code: String(status) }),
                      }}
                    >
                      {[status, code].filter((each) => each !== null).join(' ') || 'unknown'}
                    </Link>
                  ),
                },
                {
                  head: 'Message of the first line',
                  isLong: true,
                  cell: ({ message }) => message?.slice(0, 200) ?? '–',
                },
              ]}
            />
            {others > 0 || examined < all ? (
              <p className="muted" style={{ padding: '0 12px' }}>
                {others > 0 ? `${count(others)} more lines failed for other reasons. ` : ''}
                {examined < all ? `Only the first ${count(examined)} of ${count(all)} failed lines were counted.` : ''}
              </p>
            ) : null}
          </>
        )}
      </Shown>
    </Card>
  );
}

const choices = {
  failed: 'lines that returned an error',
  unfinished: 'lines that were never called',
  all_failed: 'both',
} as const;

function Retry({ batch }: { batch: Batch }) {
  const navigate = useNavigate();
  const [lines, setLines] = useState<keyof typeof choices>(batch.request_counts.failed > 0 ? 'failed' : 'unfinished');
  const retry = useChange<void, unknown>(['batch'], async () => {
    const made = await answerOf(
      api.POST('/v1/batches/{batch_id}/retry', { params: { path: { batch_id: batch.id } }, body: { lines } }),
    );
    await navigate({ to: '/batches/$id', params: { id: made.id } });
  });
  return (
    <FormDialog
      primary
      text="Retry these lines"
      title="Retry lines in a new batch"
      submit="Create the batch"
      act={retry}
    >
      <p>
        Creates a batch with these lines, unchanged and with the same custom IDs, and with the same target as this
        batch.
      </p>
      <label>
        Which
        <select value={lines} onChange={(event) => setLines(event.target.value as keyof typeof choices)}>
          {Object.entries(choices).map(([name, text]) => (
            <option key={name} value={name}>
              {text}
            </option>
          ))}
        </select>
      </label>
    </FormDialog>
  );
}
