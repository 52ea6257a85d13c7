import { sql } from 'kysely';
import { Gauge, type Registry } from 'prom-client';
import { readRollupLag, type RollupLag } from '#libs/analytics/rollups/run-roll-up.ts';
import { listSubscribers, type SubscriberState } from '#libs/event-log/subscriber.ts';
import { listProcesses } from '#libs/request-log/write/process-record.ts';
import { killedWithinMs } from '#libs/request-log/audit/report-killed.ts';
import { readSiemState, type SiemState } from '#libs/resources/siem/siem-progress.ts';
import { publishLagSeconds } from '#libs/seal/publish-checkpoints.ts';
import { sealName } from '#libs/seal/seal-state.ts';
import { createBoundedRead } from '../bounded-read.ts';
import type { Platform } from '../platform.ts';
import { subscribers } from '../subscribers.ts';

/**
 * Registers the metrics of data that all processes share. Each process reads them from the database and reports the
 * same values, so a query must use their maximum instead of their sum.
 */
export function registerDatabaseMetrics(registers: Registry[], db: Platform['db']): void {
  registerRollupMetrics(registers, db);
  registerSealMetrics(registers, db);
  registerSubscriberMetrics(registers, db);
  registerSiemMetrics(registers, db);
  registerProcessMetrics(registers, db);
  const byLabel = (name: string, help: string, label: string, read: () => Promise<readonly Labelled[]>): void => {
    const readRows = databaseRead(read);
    const made: Gauge = new Gauge({
      name,
      help,
      labelNames: [label],
      registers,
      async collect() {
        const rows = (await readRows()) ?? [];
        made.reset();
        for (const { labelled, value } of rows) made.set({ [label]: labelled }, value);
      },
    });
  };
  byLabel(
    'sluice_fine_tuning_jobs',
    'Number of fine-tuning jobs in the database by status.',
    'status',
    async () =>
      await db
        .selectFrom('fine_tuning_job')
        .select(({ fn }) => ['status as labelled', fn.countAll<number>().as('value')])
        .groupBy('status')
        .execute(),
  );
  // Only those that have not ended: the others are never deleted, and counting them would take longer every day.
  byLabel('sluice_batches', 'Number of open batches in the database, by status.', 'status', () => readOpenBatches(db));
  byLabel(
    'sluice_batches_oldest_seconds',
    'Age in seconds of the oldest open batch in the database, by status.',
    'status',
    async () =>
      await db
        .selectFrom('batch')
        .select(['status as labelled', sql<number>`extract(epoch from now() - min(created_at))::float8`.as('value')])
        .where('status', 'in', openStatuses)
        .groupBy('status')
        .execute(),
  );
}

type Labelled = { labelled: string; value: number };

/** Returns the number of batches that have not ended, by status. */
export const readOpenBatches = async (db: Platform['db']): Promise<Labelled[]> =>
  await db
    .selectFrom('batch')
    .select(({ fn }) => ['status as labelled', fn.countAll<number>().as('value')])
    .where('status', 'in', openStatuses)
    .groupBy('status')
    .execute();

const openStatuses = ['validating', 'in_progress', 'finalizing', 'cancelling'] as const;

function registerProcessMetrics(registers: Registry[], db: Platform['db']): void {
  const readProcesses = databaseRead(() => listProcesses(db, { ms: killedWithinMs }));
  const made: Gauge = new Gauge({
    name: 'sluice_processes',
    help: 'Number of processes by program and state: running, or silent (killed or disconnected from the database) for at most ten minutes.',
    labelNames: ['app', 'state'],
    registers,
    async collect() {
      const processes = (await readProcesses()) ?? [];
      made.reset();
      for (const { app, isSilent, stoppedAt } of processes) {
        if (stoppedAt === null) made.inc({ app, state: isSilent ? 'silent' : 'running' });
      }
    },
  });
}

function registerSealMetrics(registers: Registry[], db: Platform['db']): void {
  const readLag = databaseRead(() => publishLagSeconds(db));
  const made: Gauge = new Gauge({
    name: 'sluice_audit_publish_lag_seconds',
    help: 'Seconds since the oldest checkpoint was sealed that is not published yet; 0 if there is none.',
    registers,
    async collect() {
      const lag = await readLag();
      if (lag !== undefined) made.set(lag);
    },
  });
}

function registerSiemMetrics(registers: Registry[], db: Platform['db']): void {
  const readState = databaseRead(() => readSiemState(db));
  const ofEach = (name: string, help: string, valueOf: (state: SiemState) => number): void => {
    const made: Gauge = new Gauge({
      name,
      help,
      labelNames: ['owner'],
      registers,
      async collect() {
        const states = (await readState()) ?? [];
        made.reset();
        for (const state of states) made.set({ owner: state.owner }, valueOf(state));
      },
    });
  };
  ofEach(
    'sluice_siem_lag_seconds',
    'Age in seconds of the oldest event that a SIEM destination has not got yet, by owner (organisation, workspace); 0 if there is none.',
    ({ lag }) => lag,
  );
  ofEach(
    'sluice_siem_failing_destinations',
    'Number of SIEM destinations whose last attempt failed, by owner (organisation, workspace).',
    ({ failing }) => failing,
  );
  ofEach(
    'sluice_siem_dropped_records',
    'Number of events and records that OpenTelemetry collectors reported as dropped, by owner (organisation, workspace).',
    ({ dropped }) => dropped,
  );
}

function registerRollupMetrics(registers: Registry[], db: Platform['db']): void {
  const readLag = databaseRead(() => readRollupLag(db));
  const lag = (name: string, help: string, valueOf: (lag: RollupLag) => number): void => {
    const made: Gauge = new Gauge({
      name,
      help,
      registers,
      async collect() {
        const found = await readLag();
        if (found === undefined) made.reset();
        else made.set(valueOf(found));
      },
    });
  };
  lag(
    'sluice_rollup_lag_seconds',
    'Seconds since the request log was last rolled up for analytics; 0 if no rows are waiting.',
    ({ seconds }) => seconds,
  );
  lag(
    'sluice_rollup_changes_waiting',
    'Number of groups of request-log rows that are not rolled up yet, counted up to 10,000.',
    ({ changes }) => changes,
  );
}

function registerSubscriberMetrics(registers: Registry[], db: Platform['db']): void {
  const readStates = databaseRead(() => listSubscribers(db));
  const known = new Set([sealName, ...subscribers.map(({ name }) => name)]);
  const ofEach = (name: string, help: string, valueOf: (state: SubscriberState) => number): void => {
    const made: Gauge = new Gauge({
      name,
      help,
      labelNames: ['subscriber'],
      registers,
      async collect() {
        const states = (await readStates()) ?? [];
        made.reset();
        for (const state of states) if (known.has(state.name)) made.set({ subscriber: state.name }, valueOf(state));
      },
    });
  };
  ofEach(
    'sluice_subscriber_lag_events',
    'Number of events that each subscriber of the event log has not applied yet, counted up to 10,000.',
    ({ eventsBehind }) => eventsBehind,
  );
  ofEach(
    'sluice_subscriber_lag_seconds',
    'Age in seconds of the oldest event that each subscriber of the event log has not applied yet; 0 if there is none.',
    ({ secondsBehind }) => secondsBehind,
  );
  ofEach(
    'sluice_subscriber_failures',
    'Number of consecutive failed attempts of each subscriber of the event log to apply its next event.',
    ({ failures }) => failures,
  );
}

/** A read for /metrics: at most one query per second, with a maximum wait of one second. */
export function databaseRead<Value>(read: () => Promise<Value>): () => Promise<Value | undefined> {
  const bounded = createBoundedRead(read, { everyMs: 1_000, waitMs: 1_000 });
  return async () => (await bounded()).value;
}
