import { keepPreviousData, useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { useCallback, useState, type FormEvent } from 'react';
import { answerOf, api } from '../api/client.ts';
import type { EventObject } from '../api/types.ts';
import { dateTime } from '../format.ts';
import { At, Badge, Card, Code, Empty, Id, PageHead, shortId, Shown } from '../parts/basics.tsx';
import { DataTable, LongTable } from '../parts/table.tsx';
import { useActsForOrganisation, useSession } from '../session.tsx';

/** The log of the organisation, in place of a workspace. */
const organisationLog = 'org_default';

/** Events that do not change a record, in words. */
const sentences: Readonly<Record<string, string>> = {
  'session.created': 'Signed in',
  'session.ended': 'Signed out',
  'session.refused': 'Sign-in refused',
  'organisation.request_refused': 'Wrong keys or tokens',
  'api_key.request_refused': 'Requests refused',
  'user.request_refused': 'Requests refused',
  'api_key.contents_read': 'Contents read',
  'user.contents_read': 'Contents read',
  'api_key.guardrail_failed': 'Guardrail failed',
  'user.guardrail_failed': 'Guardrail failed',
  'organisation.process_started': 'Process started',
  'organisation.command_run': 'Operator ran a command',
  'organisation.data_deleted': 'Old data deleted',
  'workspace.data_deleted': 'Old data deleted',
};

/** Every change with its author, time and address, and the complete history of one record. */
export function Events() {
  const { stream, of } = useSearch({ strict: false }) as { stream?: string; of?: string };
  const { workspace } = useSession();
  const log = of === organisationLog ? organisationLog : workspace.id;
  return (
    <div className="stack">
      <PageHead
        title="Events"
        text="Changes, refused requests, reads of contents, and what processes and operators do are events in an append-only log. Replay the events of a record to see its state at any time."
      />
      <Choice key={stream} stream={stream} log={log} />
      {stream === undefined ? <Recent log={log} /> : <Story stream={stream} log={log} />}
    </div>
  );
}

function Choice({ stream, log }: { stream: string | undefined; log: string }) {
  const actsForOrganisation = useActsForOrganisation();
  const navigate = useNavigate();
  const [value, setValue] = useState(stream ?? '');
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    void navigate({
      to: '/events',
      search: value.trim() === '' ? searchIn(log) : { ...searchIn(log), stream: value.trim() },
    });
  };
  return (
    <form className="filters" onSubmit={submit} role="search">
      <label>
        Record
        <input
          size={44}
          value={value}
          onChange={(event) => setValue(event.target.value)}
          placeholder="an ID, such as batch_…"
        />
      </label>
      <button type="submit" className="primary">
        Show history
      </button>
      {stream === undefined ? null : (
        <Link to="/events" search={searchIn(log)}>
          All changes
        </Link>
      )}
      {!actsForOrganisation ? null : log === organisationLog ? (
        <Link to="/events">Events of the workspace</Link>
      ) : (
        <Link to="/events" search={searchIn(organisationLog)}>
          Events of the organisation
        </Link>
      )}
    </form>
  );
}

const searchIn = (log: string): { of?: string } => (log === organisationLog ? { of: log } : {});

/** The number of events per request. */
const pageRows = 50;

function Recent({ log }: { log: string }) {
  const changes = useInfiniteQuery({
    queryKey: ['event', 'list', log],
    queryFn: ({ pageParam }) =>
      answerOf(
        api.GET('/v1/audit-logs', {
          params: { query: { workspace_id: log, current_page: pageParam, page_size: pageRows } },
        }),
      ),
    initialPageParam: 0,
    getNextPageParam: ({ has_more: hasMore }, pages) => (hasMore ? pages.length : undefined),
  });
  const { fetchNextPage, hasNextPage, isFetching } = changes;
  const readOn = useCallback(() => {
    if (hasNextPage && !isFetching) void fetchNextPage();
  }, [fetchNextPage, hasNextPage, isFetching]);
  return (
    <Card title="Recent changes" flush>
      <Shown query={changes}>
        {({ pages }) =>
          pages[0]?.records.length === 0 ? (
            <Empty title="No changes yet" />
          ) : (
            <LongTable
              label="Changes"
              onEnd={readOn}
              rows={pages.flatMap(({ records }) => records)}
              keyOf={({ id }) => id}
              columns={[
                { head: 'When', cell: ({ timestamp }) => <At at={timestamp} /> },
                {
                  head: 'What',
                  cell: ({ resource_type: type, action }) =>
                    sentences[`${type}.${action}`] ?? (
                      <code>
                        {type} {action}
                      </code>
                    ),
                },
                {
                  head: 'Record',
                  cell: ({ resource_id: id }) => (
                    <Link to="/events" search={{ ...searchIn(log), stream: id }}>
                      {id}
                    </Link>
                  ),
                },
                {
                  head: 'Who',
                  cell: ({ user_type: type, user_id: id }) => (
                    <span title={id}>{`${type.replace('_', ' ')} ${shortId(id)}`}</span>
                  ),
                },
                { head: 'From', cell: ({ client_ip: address }) => address ?? '–' },
              ]}
            />
          )
        }
      </Shown>
    </Card>
  );
}

/** The events of one record, and its state at a moment that the user chooses. */
function Story({ stream, log }: { stream: string; log: string }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const events = useInfiniteQuery({
    queryKey: ['event', stream, 'story', log],
    queryFn: ({ pageParam }) =>
      answerOf(
        api.GET('/v1/events', {
          params: {
            query: { stream, workspace_id: log, limit: 100, ...(pageParam === null ? {} : { after: pageParam }) },
          },
        }),
      ),
    initialPageParam: null as string | null,
    getNextPageParam: ({ has_more: hasMore, last_id: lastId }) => (hasMore ? lastId : undefined),
  });
  return (
    <Shown query={events}>
      {({ pages }) => {
        const all = pages.flatMap(({ data }) => data);
        if (all.length === 0) {
          return (
            <Card>
              <Empty title="This workspace has no record with this ID">
                <Link to="/events">Show recent changes</Link>
              </Empty>
            </Card>
          );
        }
        const position = Math.min(chosen ?? all.length, all.length);
        return (
          <>
            <Card title="Point in time">
              <label>
                <span>
                  After event {position} of {all.length}: {dateTime(all[position - 1]?.recorded_at ?? 0)}
                </span>
                <input
                  type="range"
                  min={1}
                  max={all.length}
                  value={position}
                  onChange={(event) => setChosen(Number(event.target.value))}
                />
              </label>
              {events.hasNextPage ? (
                <button type="button" onClick={() => void events.fetchNextPage()}>
                  Load more events
                </button>
              ) : null}
            </Card>
            <Moment events={all} position={position} log={log} />
          </>
        );
      }}
    </Shown>
  );
}

function Moment({ events, position, log }: { events: EventObject[]; position: number; log: string }) {
  const event = events[position - 1];
  const before = useStateAfter(events[position - 2], log);
  const after = useStateAfter(event, log);
  if (event === undefined) return null;
  const { metadata, data } = event;
  const { patch } = useChange(event, log);
  const changed = Object.keys(after).filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name]));
  return (
    <div className="columns">
      <Card title={`Event ${event.stream_version}`} aside={<Badge tone="info">{event.type}</Badge>}>
        <p>
          {dateTime(event.recorded_at)}, by {metadata.actor.type} {metadata.actor.id}
          {metadata.address === undefined ? '' : ` from ${metadata.address}`}
        </p>
        {metadata.trace_id === undefined ? null : (
          <p>
            <Link to="/requests" search={{ trace_id: metadata.trace_id }}>
              Calls in the same trace
            </Link>
          </p>
        )}
        <p className="small muted">
          SHA-256 of the event: <Id id={event.sha256} />
        </p>
        <DataTable
          label="Changes"
          rows={patch}
          keyOf={({ op, path }) => `${op} ${path}`}
          columns={[
            { head: 'What changed', isLong: true, cell: ({ path }) => <code>{path}</code> },
            { head: 'How', cell: ({ op }) => changeNames[op] },
            { head: 'New value', isLong: true, cell: ({ op, value }) => (op === 'remove' ? '–' : shorten(value)) },
          ]}
        />
        <Code value={data} label="Event data" />
      </Card>
      <Card title="Record after this event">
        <DataTable
          label="Fields"
          rows={Object.keys(after)}
          keyOf={(name) => name}
          columns={[
            { head: 'Field', cell: (name) => <code>{name}</code> },
            {
              head: 'Value and changes',
              isLong: true,
              cell: (name) => (
                <>
                  {changed.includes(name) ? <Badge tone="warn">changed</Badge> : null}{' '}
                  <code>{shorten(after[name])}</code>
                  {changed.includes(name) && name in before ? (
                    <div className="small muted">before: {shorten(before[name])}</div>
                  ) : null}
                </>
              ),
            },
          ]}
        />
      </Card>
    </div>
  );
}

const nothing: Record<string, unknown> = {};

/** The state of a record after one of its events, as the server replays it; the previous state while it is loading. */
function useStateAfter(event: EventObject | undefined, log: string): Record<string, unknown> {
  const { stream = '', stream_version: version = 0 } = event ?? {};
  const replayed = useQuery({
    queryKey: ['replay', stream, version],
    queryFn: () =>
      answerOf(api.GET('/v1/events/replay', { params: { query: { stream, version, workspace_id: log } } })),
    enabled: event !== undefined,
    placeholderData: keepPreviousData,
    // Events never change.
    staleTime: Number.POSITIVE_INFINITY,
  });
  return event === undefined ? nothing : (replayed.data?.state ?? nothing);
}

const changeNames = { add: 'added', replace: 'changed', remove: 'removed' } as const;
const noChange = { patch: [] };

/** The changes that an event made, down to single members of nested objects; none while they are loading. */
function useChange(event: EventObject | undefined, log: string) {
  const { stream = '', stream_version: version = 0 } = event ?? {};
  const diff = useQuery({
    queryKey: ['diff', stream, version],
    queryFn: () =>
      answerOf(
        api.GET('/v1/events/diff', {
          params: { query: { stream, from: String(version - 1), to: String(version), workspace_id: log } },
        }),
      ),
    enabled: event !== undefined,
    // Events never change.
    staleTime: Number.POSITIVE_INFINITY,
  });
  return diff.data ?? noChange;
}

const shorten = (value: unknown): string => {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? '');
  return text.length > 200 ? `${text.slice(0, 200)}…` : text;
};
