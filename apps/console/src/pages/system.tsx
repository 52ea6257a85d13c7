import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { answerOf, api } from '../api/client.ts';
import { followSystem } from '../api/live.ts';
import type { Answer } from '../api/types.ts';
import { bytes, count, duration } from '../format.ts';
import { Ago, AsCurl, Badge, Card, Empty, ErrorNote, PageHead, Shown, Tile } from '../parts/basics.tsx';
import { useChange } from '../parts/changes.tsx';
import { DataTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';

type SystemState = Answer<'/v1/admin/system'>;

/** A single read; `followSystem` reads the stream at the same address. */
const readSystem = async (): Promise<SystemState> => (await answerOf(api.GET('/v1/admin/system'))) as SystemState;

/** The current parts of the installation, and whether all of them keep up. */
export function System() {
  const queries = useQueryClient();
  const system = useQuery({ queryKey: ['system'], queryFn: readSystem });
  const isShown = system.isSuccess;
  useEffect(
    () => (isShown ? followSystem((state) => queries.setQueryData(['system'], state)) : undefined),
    [isShown, queries],
  );
  return (
    <div className="stack">
      <PageHead
        title="System"
        text="The processes, queues, subscribers and database of this installation. Updated every few seconds."
      />
      <Shown query={system}>
        {(state) => (
          <>
            <Problems state={state} />
            <Figures state={state} />
            <Processes state={state} />
            <div className="columns">
              <Queues state={state} />
              <Subscribers state={state} />
            </div>
            <div className="columns">
              <ModelCheck check={state.read_model_check} />
              <Tables state={state} />
            </div>
          </>
        )}
      </Shown>
      <AsCurl path="/v1/admin/system" />
    </div>
  );
}

/** Problems that need attention, each with instructions. */
function problemsOf({ processes, subscribers, queues, event_log: log, database, version }: SystemState): string[] {
  const runs = processes.filter(({ state }) => state === 'running');
  const versions = new Set(runs.map((process) => process.version));
  const busy = database.connections / database.connections_max;
  return [
    ...(runs.some(({ app }) => app === 'worker')
      ? []
      : ['No worker is running, so batches make no progress. Start a worker, or run `npm start`.']),
    ...processes
      .filter(({ state }) => state === 'silent')
      .map(
        ({ app, host }) =>
          `A process (${app}, ${host}) has sent no heartbeat for 45 s. It was killed or cannot reach the database. Other processes take over its work.`,
      ),
    ...(versions.size > 1
      ? [`Processes run different releases (${[...versions].join(', ')}; this one: ${version}). Complete the upgrade.`]
      : []),
    ...subscribers
      .filter(({ failures }) => failures > 0)
      .map(
        ({ name, failures, last_error: error }) =>
          `The subscriber ${name} failed ${failures} times in a row: ${error ?? 'see the log of a worker'}. Fix the cause, then run: sluice subscribers retry ${name}.`,
      ),
    ...queues
      .filter(({ oldest_seconds: waits }) => waits > 60)
      .map(
        ({ name, oldest_seconds: waits }) =>
          `A job of the queue ${name} has waited for ${duration(waits * 1_000)}: start more workers, or find out why they are busy.`,
      ),
    ...(log.seconds_behind > 30
      ? [
          `A transaction has been open for ${duration(log.seconds_behind * 1_000)} and blocks subscribers of the event log. Find it in pg_stat_activity.`,
        ]
      : []),
    ...(busy > 0.9
      ? [
          `${database.connections} of ${database.connections_max} database connections are in use. Raise max_connections, or lower SLUICE_DB_POOL_MAX.`,
        ]
      : []),
  ];
}

function Problems({ state }: { state: SystemState }) {
  const problems = problemsOf(state);
  if (problems.length === 0) return <div className="note-box good">All systems are running and up to date.</div>;
  return (
    <div className="note-box warn" role="alert">
      <strong>Needs attention</strong>
      <ul>
        {problems.map((problem) => (
          <li key={problem}>{problem}</li>
        ))}
      </ul>
    </div>
  );
}

const Figures = ({
  state: { version, database, event_log: log, open_batches: batches, rollups },
}: {
  state: SystemState;
}) => (
  <div className="tiles">
    <Tile label="Sluice" value={version} note={`PostgreSQL ${database.version}`} />
    <Tile
      label="Database"
      value={bytes(database.size_bytes)}
      note={`${database.connections} of ${database.connections_max} connections`}
    />
    <Tile
      label="Events"
      value={count(log.events)}
      note={
        log.last_event_at === null ? (
          'none yet'
        ) : (
          <>
            approximately; latest <Ago at={log.last_event_at} />
          </>
        )
      }
    />
    <Tile
      label="Open batches"
      value={count(Object.values(batches).reduce((sum, each) => sum + each, 0))}
      note={
        Object.entries(batches)
          .map(([status, each]) => `${each} ${status.replaceAll('_', ' ')}`)
          .join(', ') || 'none'
      }
    />
    <Tile
      label="Analytics"
      value={rollups.groups_waiting === 0 ? 'up to date' : duration(rollups.seconds_behind * 1_000)}
      note="lag behind the request log"
    />
  </div>
);

const tones = { running: 'good', silent: 'bad', stopped: 'plain' } as const;

const Processes = ({ state: { processes } }: { state: SystemState }) => (
  <Card title="Processes of the last hour" flush>
    {processes.length === 0 ? (
      <Empty title="No processes yet" />
    ) : (
      <DataTable
        label="Processes"
        rows={processes}
        keyOf={({ id }) => id}
        columns={[
          { head: 'Process', cell: ({ app, id }) => <span title={id}>{app}</span> },
          { head: 'State', cell: ({ state }) => <Badge tone={tones[state]}>{state}</Badge> },
          { head: 'Release', cell: ({ version }) => version },
          { head: 'Host', cell: ({ host }) => <code>{host}</code> },
          { head: 'Started', cell: ({ started_at: at }) => <Ago at={at} /> },
          { head: 'Last heartbeat', cell: ({ heard_at: at }) => <Ago at={at} /> },
          { head: 'Unwritten records', cell: ({ unwritten_log_records: rows }) => count(rows), isNumber: true },
          { head: 'Lost records', cell: ({ lost_log_records: rows }) => count(rows), isNumber: true },
        ]}
      />
    )}
  </Card>
);

const Queues = ({ state: { queues } }: { state: SystemState }) => (
  <Card title="Queues" flush>
    <DataTable
      label="Queues"
      rows={queues}
      keyOf={({ name }) => name}
      columns={[
        { head: 'Queue', cell: ({ name }) => <code>{name}</code> },
        { head: 'Ready', cell: ({ ready }) => count(ready), isNumber: true },
        { head: 'Running', cell: ({ active }) => count(active), isNumber: true },
        { head: 'Deferred', cell: ({ deferred }) => count(deferred), isNumber: true },
        {
          head: 'Longest wait',
          cell: ({ oldest_seconds: s }) => (s === 0 ? '–' : duration(s * 1_000)),
          isNumber: true,
        },
      ]}
    />
  </Card>
);

const Subscribers = ({ state: { subscribers } }: { state: SystemState }) => (
  <Card title="Subscribers of the event log" flush>
    {subscribers.length === 0 ? (
      <Empty title="No subscribers yet" />
    ) : (
      <DataTable
        label="Subscribers"
        rows={subscribers}
        keyOf={({ name }) => name}
        columns={[
          { head: 'Subscriber', cell: ({ name }) => <code>{name}</code> },
          { head: 'Events behind', cell: ({ events_behind: events }) => count(events), isNumber: true },
          { head: 'Behind', cell: ({ seconds_behind: s }) => (s === 0 ? '–' : duration(s * 1_000)), isNumber: true },
          {
            head: 'State',
            cell: ({ failures }) =>
              failures === 0 ? <Badge tone="good">OK</Badge> : <Badge tone="bad">{failures} failures</Badge>,
          },
        ]}
      />
    )}
  </Card>
);

const Tables = ({ state: { database } }: { state: SystemState }) => (
  <Card title="Largest tables" flush>
    <DataTable
      label="Largest tables"
      rows={database.tables}
      keyOf={({ name }) => name}
      columns={[
        { head: 'Table', cell: ({ name }) => <code>{name}</code> },
        { head: 'Size', cell: ({ size_bytes: size }) => bytes(size), isNumber: true },
      ]}
    />
  </Card>
);

const checkTexts = {
  waiting: ['plain', 'waiting for a worker'],
  running: ['info', 'running'],
  equal: ['good', 'equal'],
  different: ['bad', 'different'],
  failed: ['bad', 'failed'],
} as const;

/** Runs `sluice check records` in a worker. */
function ModelCheck({ check }: { check: SystemState['read_model_check'] }) {
  const mayAsk = useMay('workspaces.write');
  const ask = useChange<void, unknown>(['system'], () => answerOf(api.POST('/v1/admin/system/checks')));
  const isOpen = check?.state === 'waiting' || check?.state === 'running';
  return (
    <Card title="Do the tables match the event log?">
      <p className="muted">
        A worker replays the whole event log and compares the result with the stored tables. This takes about one second
        per 20,000 events and does not affect running work.
      </p>
      {check === null ? null : (
        <div role="status" className="row">
          <Badge tone={checkTexts[check.state][0]}>{checkTexts[check.state][1]}</Badge>
          {count(check.events)} events, <Ago at={check.ended_at ?? check.asked_at} />
        </div>
      )}
      {check?.problem ? (
        <div className="note-box bad">
          {check.problem}
          {check.state === 'different'
            ? ' To rebuild the tables from the log, run: sluice check records --repair.'
            : null}
        </div>
      ) : null}
      {ask.error === null ? null : <ErrorNote error={ask.error} />}
      {mayAsk ? (
        <button type="button" disabled={isOpen || ask.isPending} onClick={() => ask.mutate()}>
          Check now
        </button>
      ) : null}
    </Card>
  );
}
