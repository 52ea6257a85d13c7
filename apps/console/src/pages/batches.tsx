import { useInfiniteQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { useCallback, useEffect } from 'react';
import { answerOf, api } from '../api/client.ts';
import type { Batch } from '../api/types.ts';
import { count, duration, isOfSimulator, usdOf } from '../format.ts';
import { Ago, AsCurl, Card, CopyButton, Empty, Loading, PageHead, shortId, Shown } from '../parts/basics.tsx';
import { LongTable, type Column } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { endOf, isOpenBatch, LinesProgress, paceText, StatusBadge, usePace } from './batch-parts.tsx';

const statuses = [
  'validating',
  'in_progress',
  'finalizing',
  'completed',
  'failed',
  'expired',
  'cancelling',
  'cancelled',
];

/** All batches, newest first, with the progress of those that are running. */
export function Batches() {
  const { status = '' } = useSearch({ strict: false }) as { status?: string };
  const navigate = useNavigate();
  const mayWrite = useMay('batches.write');
  const batches = useInfiniteQuery({
    queryKey: ['batch', 'list', 'pages'],
    queryFn: ({ pageParam }) =>
      answerOf(
        api.GET('/v1/batches', {
          params: { query: { limit: 50, ...(pageParam === null ? {} : { after: pageParam }) } },
        }),
      ),
    initialPageParam: null as string | null,
    getNextPageParam: ({ has_more: hasMore, last_id: lastId }) => (hasMore ? lastId : undefined),
  });
  const { fetchNextPage, hasNextPage, isFetching } = batches;
  const readOn = useCallback(() => {
    if (hasNextPage && !isFetching) void fetchNextPage();
  }, [fetchNextPage, hasNextPage, isFetching]);
  const all = batches.data?.pages.flatMap(({ data }) => data) ?? [];
  const rows = status === '' ? all : all.filter((batch) => batch.status === status);
  // The API does not filter by status, so older pages are read until there are rows to show.
  const looksFurther = status !== '' && rows.length === 0 && hasNextPage;
  useEffect(() => {
    if (looksFurther) readOn();
  }, [looksFurther, readOn]);
  return (
    <div className="stack">
      <PageHead
        title="Batches"
        text="Upload a file of requests. Each line gets exactly one result, in the output file or the error file, even after a crash."
      >
        <label className="row">
          <span className="hidden">Status</span>
          <select
            value={status}
            onChange={(event) =>
              void navigate({ to: '/batches', search: event.target.value === '' ? {} : { status: event.target.value } })
            }
          >
            <option value="">All statuses</option>
            {statuses.map((each) => (
              <option key={each} value={each}>
                {each.replace('_', ' ')}
              </option>
            ))}
          </select>
        </label>
        {mayWrite ? (
          <Link to="/batches/new" className="button primary">
            New batch
          </Link>
        ) : null}
      </PageHead>
      <Card flush>
        <Shown query={batches}>
          {() => {
            if (looksFurther) return <Loading what={`Searching older batches, ${count(all.length)} so far`} />;
            if (rows.length > 0) {
              return <LongTable label="Batches" columns={columns} rows={rows} keyOf={({ id }) => id} onEnd={readOn} />;
            }
            if (all.length > 0) {
              return (
                <Empty title={`None of ${count(all.length)} batches is ${status.replace('_', ' ')}`}>
                  <Link to="/batches">Show all batches</Link>
                </Empty>
              );
            }
            return (
              <Empty title="No batches yet">
                <p>
                  A batch is a file with one request per line. If you have no file, the next page can generate one for
                  the simulator, whose costs are not billed.
                </p>
                {mayWrite ? (
                  <Link to="/batches/new" className="button">
                    Create your first batch
                  </Link>
                ) : null}
              </Empty>
            );
          }}
        </Shown>
      </Card>
      <AsCurl path="/v1/batches?limit=50" />
    </div>
  );
}

const columns: readonly Column<Batch>[] = [
  {
    head: 'Batch',
    cell: ({ id }) => (
      <span className="nowrap">
        <Link to="/batches/$id" params={{ id }}>
          <code title={id}>{shortId(id)}</code>
        </Link>
        <CopyButton text={id} />
      </span>
    ),
  },
  {
    head: 'Status',
    cell: (batch) => <StatusBadge status={batch.status} isPaused={isOpenBatch(batch) && batch.paused_at !== null} />,
  },
  { head: 'Lines', cell: (batch) => <LinesProgress batch={batch} /> },
  { head: 'Pace', cell: (batch) => <PaceCell batch={batch} /> },
  { head: 'Endpoint', cell: ({ endpoint }) => <code>{endpoint}</code> },
  { head: 'Cost', cell: ({ cost_usd: cost, model }) => usdOf(cost, isOfSimulator(model)), isNumber: true },
  { head: 'Created', cell: ({ created_at: at }) => <Ago at={at * 1_000} /> },
];

function PaceCell({ batch }: { batch: Batch }) {
  const pace = usePace(batch);
  const endMs = endOf(batch);
  if (pace !== null) return <span className="nowrap">{paceText(pace)}</span>;
  if (endMs === null) return <span className="muted">–</span>;
  return <span className="muted nowrap">took {duration(endMs - batch.created_at * 1_000)}</span>;
}
