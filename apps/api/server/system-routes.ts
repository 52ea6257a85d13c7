import type { Request } from 'express';
import { sql, type Kysely } from 'kysely';
import { readRollupLag } from '#libs/analytics/rollups/run-roll-up.ts';
import { ModelCheck, SystemObject } from '#libs/contracts/system.ts';
import type { Database } from '#libs/database/schema.ts';
import { rebind } from '#libs/database/workspace-binding.ts';
import { closedLagSeconds, newestEvent } from '#libs/event-log/read-events.ts';
import { listSubscribers } from '#libs/event-log/subscriber.ts';
import { getCaller } from '#libs/http/request-context.ts';
import type { Caller } from '#libs/http/caller.ts';
import type { Route } from '#libs/http/route.ts';
import { actsForOrganisation, hasScope, requireOrganisation } from '#libs/http/rights.ts';
import { version } from '#libs/kernel/version.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { listProcesses, type ListedProcess } from '#libs/request-log/write/process-record.ts';
import { readOpenBatches } from '../../platform/operations/database-metrics.ts';
import { recordModelCheck, readModelCheck } from '../../platform/model-check.ts';
import { modelCheckQueue } from '../../platform/queues.ts';
import type { EventStreams } from '#libs/activity/event-streams.ts';
import { openEventStream, type EventStreamDeps } from '../events/open-event-stream.ts';
import { organisationErrors } from '../document-texts.ts';

type Deps = EventStreamDeps & { db: Kysely<Database>; queue: JobQueue; eventStreams: EventStreams };

/** How often a stream reads the state. All streams of a process share a state that was read within the second time. */
const lookEveryMs = 5_000;
const sharedForMs = 2_000;

/**
 * GET /v1/admin/system: processes, queues, subscribers and the database, as all processes share them; once, or as
 * server-sent events for a client that accepts these. POST /v1/admin/system/checks: a worker compares the read models
 * with the event log. Both require a caller that acts for the organisation. Errors: forbidden
 * (`organisation_key_required`), rate_limited (too many streams).
 */
export function systemRoutes({ db, queue, eventStreams, ...deps }: Deps): Route[] {
  const readShared = shareState({ db, queue });
  return [
    {
      method: 'GET',
      path: '/v1/admin/system',
      operationId: 'retrieveSystem',
      summary: 'Retrieve the state of this installation: processes, queues, subscribers, database',
      description:
        'Returns processes with their heartbeats, queued jobs, the lag of subscribers and rollups, the size of the ' +
        'database, versions, and the last check of the read models. With `Accept: text/event-stream`, it is sent again ' +
        'every few seconds. Every process returns the same state.',
      errors: { ...organisationErrors, too_many_streams: 'the limit of open streams is reached' },
      tag: 'Administration',
      scope: 'workspaces.read',
      responses: {
        200: {
          description: 'The current state. With `Accept: text/event-stream`, it is sent as an event every few seconds.',
          schema: SystemObject,
          streams: true,
        },
      },
      handler: async (request, response) => {
        forOrganisation(request, 'see the state of the installation');
        if (!/^text\/event-stream\b/.test(request.get('accept') ?? '')) {
          response.json(await readSystem({ db, queue }));
          return;
        }
        const watch = eventStreams.watch(getCaller(request), false);
        response.on('close', () => watch.stop());
        try {
          const mayFollow = (caller: Caller): boolean =>
            hasScope(caller, 'workspaces.read') && actsForOrganisation(caller);
          const stream = await openEventStream(deps, { request, response, caller: getCaller(request), mayFollow });
          for (let isOpen = true; isOpen;) {
            isOpen = await stream.send(`data: ${await readShared()}\n\n`);
            // The watch ends early when the workspace has news, which are not relevant for this stream.
            const nextLookMs = performance.now() + lookEveryMs;
            while (isOpen && performance.now() < nextLookMs) {
              const { isOver } = await watch.next(nextLookMs - performance.now());
              isOpen = !isOver && !response.destroyed && (await stream.caller()) !== null;
            }
          }
        } finally {
          watch.stop();
        }
        response.end();
      },
    },
    {
      method: 'POST',
      path: '/v1/admin/system/checks',
      operationId: 'createSystemCheck',
      summary: 'Compare all read models with the event log, in a worker',
      description:
        'A worker computes every record from the events and compares it with the stored one. Records are not changed. If ' +
        'a check is already waiting or running, it is returned instead of a new one.',
      errors: organisationErrors,
      tag: 'Administration',
      scope: 'workspaces.write',
      responses: {
        200: {
          description: 'The check that a worker will run. `GET /v1/admin/system` shows its progress.',
          schema: ModelCheck,
        },
      },
      handler: async (request, response) => {
        forOrganisation(request, 'check the read models');
        response.json(await askForCheck({ db, queue }));
      },
    },
  ];
}

/**
 * Lets the statements of the request see every workspace, for a caller that acts for the organisation. Throws
 * forbidden.
 */
function forOrganisation(request: Request, what: string): void {
  requireOrganisation(getCaller(request), what);
  rebind(null);
}

/** Reads the state as JSON, once for all streams that request it at about the same time. */
function shareState(deps: Pick<Deps, 'db' | 'queue'>): () => Promise<string> {
  let shared: { sinceMs: number; state: Promise<string> } | undefined;
  return () => {
    if (shared === undefined || performance.now() - shared.sinceMs > sharedForMs) {
      shared = { sinceMs: performance.now(), state: readSystem(deps).then((state) => JSON.stringify(state)) };
    }
    return shared.state;
  };
}

async function readSystem({ db, queue }: Pick<Deps, 'db' | 'queue'>): Promise<SystemObject> {
  const [processes, depths, subscribers, rollups, batches, database, lag, lastEvent, check] = await Promise.all([
    listProcesses(db, { ms: 3_600_000 }),
    queue.depths(),
    listSubscribers(db),
    readRollupLag(db),
    readOpenBatches(db),
    readDatabase(db),
    closedLagSeconds(db),
    newestEvent(db),
    readModelCheck(db),
  ]);
  return {
    object: 'system',
    version,
    processes: processes.map(toProcess),
    queues: depths.map(({ name, readyCount, activeCount, deferredCount, oldestReadySeconds }) => ({
      name,
      ready: readyCount,
      active: activeCount,
      deferred: deferredCount,
      oldest_seconds: oldestReadySeconds ?? 0,
    })),
    subscribers: subscribers.map(({ name, eventsBehind, secondsBehind, failures, lastError }) => ({
      name,
      events_behind: eventsBehind,
      seconds_behind: secondsBehind,
      failures,
      last_error: lastError,
    })),
    rollups: { seconds_behind: rollups.seconds, groups_waiting: rollups.changes },
    open_batches: Object.fromEntries(batches.map(({ labelled, value }) => [labelled, value])),
    database,
    event_log: {
      events: lastEvent?.position ?? 0,
      seconds_behind: lag,
      last_event_at: lastEvent?.recordedAt.toISOString() ?? null,
    },
    read_model_check: check,
  };
}

const toProcess = (row: ListedProcess): SystemObject['processes'][number] => ({
  id: row.id,
  app: row.app,
  version: row.version,
  host: row.host,
  state: row.stoppedAt !== null ? 'stopped' : row.isSilent ? 'silent' : 'running',
  started_at: row.startedAt.toISOString(),
  heard_at: row.heardAt.toISOString(),
  stopped_at: row.stoppedAt?.toISOString() ?? null,
  unwritten_log_records: row.lastSequence - row.writtenSequence,
  lost_log_records: row.lostRows,
});

/** Read from the catalogue and its estimates, so that it takes as long for a large database as for a small one. */
async function readDatabase(db: Kysely<Database>): Promise<SystemObject['database']> {
  const { rows } = await sql<SystemObject['database']>`
    select current_setting('server_version') as version, pg_database_size(current_database()) as size_bytes,
      (select count(*)::int from pg_stat_activity where datname = current_database()) as connections,
      current_setting('max_connections')::int as connections_max,
      (select coalesce(jsonb_agg(largest), '[]') from (
        -- A partitioned table has the size of its partitions.
        select coalesce(parent.relname, own.relname) as name, sum(pg_total_relation_size(own.oid))::bigint as size_bytes
        from pg_class as own left join pg_inherits on inhrelid = own.oid left join pg_class as parent on parent.oid = inhparent
        join pg_namespace as space on space.oid = own.relnamespace
        where own.relkind = 'r' and space.nspname in ('public', 'pgboss')
        group by 1 order by 2 desc limit 10
      ) as largest) as tables`.execute(db);
  const [row] = rows;
  if (row === undefined) throw new Error('the database returned no description');
  return row;
}

/** Enqueues a check. If one is waiting or running already, that one is returned. */
async function askForCheck({ db, queue }: Pick<Deps, 'db' | 'queue'>): Promise<ModelCheck> {
  return await db.transaction().execute(async (tx) => {
    // Two concurrent requests create only one check.
    await sql`select pg_advisory_xact_lock(hashtextextended('ask for a check of the read models', 0))`.execute(tx);
    const known = await readModelCheck(tx);
    await queue.enqueue(tx, modelCheckQueue, {});
    // The queue has at most one such job, and a lost one runs again, so a running check stays unchanged.
    const isOpen = known?.state === 'waiting' || known?.state === 'running';
    if (known && isOpen) return known;
    const asked: ModelCheck = {
      object: 'read_model_check',
      state: 'waiting',
      asked_at: new Date().toISOString(),
      ended_at: null,
      events: 0,
      problem: null,
    };
    await recordModelCheck(tx, asked);
    return asked;
  });
}
