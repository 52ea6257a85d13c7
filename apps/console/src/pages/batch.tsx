import { useInfiniteQuery, useMutation, useQuery } from '@tanstack/react-query';
import { Link, useParams, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { answerOf, api } from '../api/client.ts';
import type { BatchDetail, EventObject } from '../api/types.ts';
import { serverPath } from '../api/server-url.ts';
import { count, dateTime, duration, isOfSimulator, percent, short, usdOf } from '../format.ts';
import { AsCurl, Card, Code, Dialog, ErrorNote, Facts, Id, PageHead, Shown, Tile } from '../parts/basics.tsx';
import { useChange } from '../parts/changes.tsx';
import { DataTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { Failures, Lines } from './batch-lines.tsx';
import { batchQuery, endOf, isOpenBatch, LinesProgress, StatusBadge } from './batch-parts.tsx';

const tabs = { summary: 'Summary', lines: 'Lines', events: 'Events' } as const;

/** One batch: its progress, its cost, its lines, and its complete history. */
export function BatchPage() {
  const { id } = useParams({ strict: false }) as { id: string };
  const { tab = 'summary' } = useSearch({ strict: false }) as { tab?: string };
  const query = useQuery(batchQuery(id));
  return (
    <div className="stack">
      <Shown query={query}>
        {(batch) => (
          <>
            <Head batch={batch} />
            <Figures batch={batch} />
            <nav className="tabs" aria-label="Parts of the batch">
              {Object.entries(tabs).map(([name, text]) => (
                <Link
                  key={name}
                  to="/batches/$id"
                  params={{ id }}
                  search={{ tab: name }}
                  aria-current={name === tab ? 'page' : undefined}
                >
                  {text}
                </Link>
              ))}
            </nav>
            {tab === 'events' ? (
              <Events id={id} />
            ) : tab === 'lines' ? (
              <Lines batch={batch} />
            ) : (
              <Summary batch={batch} />
            )}
          </>
        )}
      </Shown>
    </div>
  );
}

function Downloads({ batch }: { batch: BatchDetail }) {
  const { completed, failed } = batch.request_counts;
  return (
    <>
      {batch.output_file_id === null ? null : (
        <a
          className="button"
          href={`${serverPath}/v1/files/${batch.output_file_id}/content`}
          download={`${batch.id}-output.jsonl`}
        >
          Download output
        </a>
      )}
      {batch.error_file_id === null ? null : (
        <a
          className="button"
          href={`${serverPath}/v1/files/${batch.error_file_id}/content`}
          download={`${batch.id}-errors.jsonl`}
        >
          Download errors
        </a>
      )}
      {isOpenBatch(batch) && completed + failed > 0 ? (
        <a
          className="button"
          href={`${serverPath}/v1/batches/${batch.id}/results`}
          download={`${batch.id}-results.jsonl`}
        >
          Download results so far
        </a>
      ) : null}
    </>
  );
}

function Head({ batch }: { batch: BatchDetail }) {
  const mayWrite = useMay('batches.write');
  const [asks, setAsks] = useState(false);
  const cancel = useMutation({
    mutationFn: () => answerOf(api.POST('/v1/batches/{batch_id}/cancel', { params: { path: { batch_id: batch.id } } })),
    onSuccess: () => setAsks(false),
  });
  const path = { path: { batch_id: batch.id } };
  const pause = useChange<void, unknown>(['batch'], () =>
    batch.paused_at === null
      ? answerOf(api.POST('/v1/batches/{batch_id}/pause', { params: path }))
      : answerOf(api.POST('/v1/batches/{batch_id}/resume', { params: path, body: raised })),
  );
  const reached = batch.paused_at === null ? null : (batch.bounds?.reached ?? null);
  const [bound, setBound] = useState('');
  const raised =
    reached === null ? {} : { [reached]: bound === '' ? null : reached === 'max_cost' ? bound : Number(bound) };
  const { completed, failed, total } = batch.request_counts;
  const left = total - completed - failed;
  return (
    <>
      <PageHead
        title={
          <span className="row">
            Batch <StatusBadge status={batch.status} isPaused={isOpenBatch(batch) && batch.paused_at !== null} />
          </span>
        }
        text={<Id id={batch.id} />}
      >
        <Downloads batch={batch} />
        {mayWrite && isOpenBatch(batch) && batch.status !== 'cancelling' ? (
          <>
            {reached === null ? null : (
              <label className="row">
                New {reached}
                <input
                  value={bound}
                  inputMode="decimal"
                  placeholder="none"
                  onChange={(event) => setBound(event.target.value)}
                  style={{ width: 96 }}
                />
              </label>
            )}
            {batch.status === 'finalizing' ? null : (
              <button type="button" disabled={pause.isPending} onClick={() => pause.mutate()}>
                {batch.paused_at === null ? 'Pause' : 'Resume'}
              </button>
            )}
            <button type="button" className="danger" onClick={() => setAsks(true)}>
              Cancel
            </button>
          </>
        ) : null}
      </PageHead>
      {pause.error === null ? null : <ErrorNote error={pause.error} />}
      <Waits batch={batch} />
      {asks ? (
        <Dialog title="Cancel this batch?" onClose={() => setAsks(false)}>
          <p>
            {left > 0 ? `${count(left)} lines have no result yet. ` : ''}Running calls can still finish and are counted.
            Lines that were not called are written to the error file as batch_cancelled. Existing results are kept.
          </p>
          {cancel.error === null ? null : <ErrorNote error={cancel.error} />}
          <div className="row">
            <button type="button" className="danger" disabled={cancel.isPending} onClick={() => cancel.mutate()}>
              Cancel the batch
            </button>
            <button type="button" onClick={() => setAsks(false)}>
              Keep it running
            </button>
          </div>
        </Dialog>
      ) : null}
    </>
  );
}

/** The reasons why lines are not being called. */
function Waits({ batch: { waits, expires_at: end } }: { batch: BatchDetail }) {
  if (waits.length === 0) return null;
  return (
    <div className="note-box warn" role="status">
      <strong>Waiting</strong>
      <ul>
        {waits.map((wait) => (
          <li key={`${wait.reason} ${wait.target} ${wait.model}`}>
            {wait.message}
            {wait.reason === 'paused' ? ' Press Resume to continue.' : ''}
            {wait.until === null ? '' : ` Next attempt at ${dateTime(wait.until * 1_000)}.`}
            {end === null ? '' : ` The batch expires at ${dateTime(end * 1_000)}.`}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Figures({ batch }: { batch: BatchDetail }) {
  const { eta, lines_per_second: rate, calls_in_flight: calls } = batch.gateway;
  const { total, completed, failed } = batch.request_counts;
  const endMs = endOf(batch);
  const startMs = (batch.in_progress_at ?? batch.created_at) * 1_000;
  const tookMs = endMs === null ? null : endMs - startMs;
  return (
    <>
      <LinesProgress batch={batch} />
      <div className="tiles">
        <Tile label="Completed" value={count(completed)} note={percent(completed, total)} />
        <Tile label="Failed" value={count(failed)} note={percent(failed, total)} />
        <Tile
          label={endMs === null ? 'Pace' : 'Duration'}
          value={
            endMs === null
              ? rate === null
                ? '–'
                : `${rate < 10 ? rate.toFixed(1) : short(Math.round(rate))}/s`
              : duration(tookMs ?? 0)
          }
          note={
            endMs === null
              ? eta === null || !rate
                ? undefined
                : `${duration(((total - completed - failed) / rate) * 1_000)} left`
              : tookMs !== null && tookMs > 0
                ? `${short(Math.round((completed + failed) / (tookMs / 1_000)))} lines/s`
                : undefined
          }
        />
        {endMs === null ? <Tile label="Calls running" value={count(calls)} /> : null}
        <Tile
          label="Tokens"
          value={short(batch.usage?.total_tokens)}
          note={
            batch.usage === null
              ? undefined
              : `${short(batch.usage.input_tokens)} in, ${short(batch.usage.output_tokens)} out`
          }
        />
        <Tile
          label="Cost"
          value={usdOf(batch.cost_usd, isOfSimulator(batch.model))}
          note={batch.unpriced_lines > 0 ? `${count(batch.unpriced_lines)} lines without a known price` : undefined}
        />
      </div>
    </>
  );
}

function Summary({ batch }: { batch: BatchDetail }) {
  const { repeated_calls: repeated, repeated_cost_usd: repeatedCost } = batch.gateway;
  const at = (seconds: number | null) => (seconds === null ? null : dateTime(seconds * 1_000));
  return (
    <>
      {batch.errors === null ? null : (
        <Card title="Why it failed" flush>
          <DataTable
            label="Problems in the input file"
            rows={batch.errors.data}
            keyOf={({ line, code, message }) => `${line} ${code} ${message}`}
            columns={[
              { head: 'Line', cell: ({ line }) => count(line), isNumber: true },
              { head: 'Problem', isLong: true, cell: ({ message }) => message },
              { head: 'Code', cell: ({ code }) => <code>{code}</code> },
            ]}
          />
        </Card>
      )}
      {batch.request_counts.failed > 0 || batch.error_file_id !== null ? <Failures batch={batch} /> : null}
      <div className="columns">
        <Card title="Details">
          <Facts
            rows={[
              ['Endpoint', <code key="endpoint">{batch.endpoint}</code>],
              ['Model', batch.model],
              ['Input file', <Id key="file" id={batch.input_file_id} />],
              [
                'Retries',
                batch.retry_of === null ? null : (
                  <Link key="first" to="/batches/$id" params={{ id: batch.retry_of }}>
                    lines of {batch.retry_of}
                  </Link>
                ),
              ],
              [
                'Repeated calls',
                repeated === 0
                  ? null
                  : `up to ${count(repeated)}, ${usdOf(repeatedCost, isOfSimulator(batch.model))}, after a worker died or stopped`,
              ],
              [
                'Matched their schema',
                batch.validated_outputs === null
                  ? null
                  : `${count(batch.validated_outputs.passed_on_first_call + batch.validated_outputs.passed_after_retry)} of ${count(batch.validated_outputs.checked)} lines, ${count(batch.validated_outputs.passed_after_retry)} after a retry`,
              ],
              ['Maximum cost', batch.bounds?.max_cost == null ? null : usdOf(batch.bounds.max_cost, false)],
              [
                'Maximum error rate',
                batch.bounds?.max_error_rate == null ? null : percent(batch.bounds.max_error_rate, 1),
              ],
              ['Window', batch.completion_window],
              ['Created', at(batch.created_at)],
              ['Started', at(batch.in_progress_at)],
              ['Ended', at(endOf(batch) === null ? null : (endOf(batch) ?? 0) / 1_000)],
              ['Expires', at(batch.expires_at)],
            ]}
          />
        </Card>
        <Card title="Metadata">
          {batch.metadata === null || Object.keys(batch.metadata).length === 0 ? (
            <p className="muted">This batch has no metadata.</p>
          ) : (
            <Code value={batch.metadata} label="Names and values" />
          )}
        </Card>
      </div>
      <AsCurl path={`/v1/batches/${batch.id}`} />
    </>
  );
}

/** Describes an event for people. */
function describeEvent({ type, data }: EventObject): string {
  const value = data as Record<string, number | string | undefined> & { chunks?: unknown[] };
  switch (type) {
    case 'batch.created':
      return 'Created';
    case 'batch.validated':
      return `The input file is valid: ${count(Number(value['line_count']))} lines`;
    case 'batch.lines_settled':
      return `${count(Number(value['completed']))} lines completed${Number(value['failed']) > 0 ? `, ${count(Number(value['failed']))} failed` : ''}`;
    case 'batch.chunk_redelivered':
      return `A worker stopped or crashed: chunk ${value['chunk']} moves to another worker (up to ${count(Number(value['unsettled']))} calls can be repeated)`;
    case 'batch.paused':
      return 'The batch was paused';
    case 'batch.resumed':
      return 'The batch was resumed';
    case 'batch.cancel_requested':
      return 'Cancellation was requested';
    case 'batch.finalizing':
      return 'All results are complete; writing the output files';
    case 'batch.failed':
      return 'The input file was rejected';
    default:
      return type.replace('batch.', '').replaceAll('_', ' ');
  }
}

function Events({ id }: { id: string }) {
  const events = useInfiniteQuery({
    queryKey: ['event', id, 'stream'],
    queryFn: ({ pageParam }) =>
      answerOf(
        api.GET('/v1/events', {
          params: { query: { stream: id, limit: 100, ...(pageParam === null ? {} : { after: pageParam }) } },
        }),
      ),
    initialPageParam: null as string | null,
    getNextPageParam: ({ has_more: hasMore, last_id: lastId }) => (hasMore ? lastId : undefined),
  });
  return (
    <Card title="What happened">
      <Shown query={events}>
        {({ pages }) => (
          <>
            <ol className="timeline">
              {pages
                .flatMap(({ data }) => data)
                .map((event) => (
                  <li key={event.id}>
                    <div>
                      <div>{describeEvent(event)}</div>
                      <details className="small muted">
                        <summary>
                          {dateTime(event.recorded_at)}, <code>{event.type}</code>, by {event.metadata.actor.type}
                        </summary>
                        <Code value={event} label={`Event ${event.stream_version}`} />
                      </details>
                    </div>
                  </li>
                ))}
            </ol>
            {events.hasNextPage ? (
              <button type="button" disabled={events.isFetchingNextPage} onClick={() => void events.fetchNextPage()}>
                Show more
              </button>
            ) : null}
          </>
        )}
      </Shown>
    </Card>
  );
}
