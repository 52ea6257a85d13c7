import { performance } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';
import { request } from 'undici';
import type { Pool } from 'pg';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { sealCalls } from '#libs/request-log/seal/seal-calls.ts';
import { appendEvents, metadata, streamEvents } from './append-events.ts';
import { createBenchClient } from './bench-client.ts';
import { startGenerator } from './live-bench.ts';
import { runLoad } from './load.ts';
import { checkRecords } from './log-bench.ts';
import { chatOrder, throughSluice } from './measure-targets.ts';
import { startProbe } from './probe.ts';
import { readFamilyCpuSeconds, readUsage } from './process-usage.ts';
import type { Cleanup, Stack } from './stack.ts';
import { percentile } from './statistics.ts';

export type RebuildFigures = {
  events: number;
  rebuiltPerSecond: number;
  checkedPerSecond: number;
  peakBytes: number;
  /** How long appends waited for their locks beyond the p99 without a rebuild: in total, and the longest wait. */
  heldMs: { total: number; longest: number };
  liveP99Ms: { during: number; alone: number };
  stateP99Ms: number;
  /** Processor time of the process and of Postgres for each call. */
  callMicroseconds: { live: number; seal: number };
};

type Size = { events: number; liveSeconds: number; aloneSeconds: number; states: number };

/**
 * What sealing live calls costs; how long the state of a record at a moment takes; and a rebuild of which all rows are wrong,
 * while there are live calls and appends to the same streams. Stops the worker, which would do other work meanwhile.
 */
export async function measureRebuild(
  stack: Stack,
  size: Size,
  cleanup: Cleanup,
  onProgress: (text: string) => void,
): Promise<RebuildFigures> {
  await stack.worker.stop();
  const connectionString = stack.environment['DATABASE_URL'] ?? '';
  const logger = createLogger({ name: 'bench', level: 'error' });
  const pool = createPool({ connectionString, applicationName: 'sluice-bench', transactionTimeoutMs: 0 }, logger);
  const db = createDatabase(pool);
  const eventLog = createEventLog(db);
  try {
    onProgress('record: live calls, and their seal');
    const live = await measureLiveCalls(stack, size.liveSeconds, cleanup);
    const seal = await measureCallSeal(stack, () => sealCalls({ db, eventLog, logger }));
    onProgress('record: events to rebuild from');
    const { rows } = await pool.query<{ workspace_id: string }>('select workspace_id from request_log_row limit 1');
    const workspaceId = rows[0]?.workspace_id ?? '';
    const goOn = (appended: number): boolean => appended < size.events;
    await appendEvents(eventLog, { writers: 8, eventsPerTransaction: 50, workspaceId, goOn });
    await pool.query('vacuum analyze event, batch');
    onProgress('record: states of records');
    const stateP99Ms = await measureStates(stack, pool, size.states);
    const rebuild = await measureRepair({ stack, pool, eventLog, workspaceId, connectionString }, size, onProgress);
    return { ...rebuild, stateP99Ms, callMicroseconds: { live, seal } };
  } finally {
    await db.destroy();
  }
}

/** Processor time of a saturated API and of Postgres for each call, in microseconds. */
async function measureLiveCalls(stack: Stack, seconds: number, cleanup: Cleanup): Promise<number> {
  const generator = await startGenerator(stack, cleanup);
  const read = async (): Promise<number> =>
    (await readUsage(stack.api.pid)).cpuSeconds + (await readFamilyCpuSeconds(stack.postgres.pid));
  const order = { ...chatOrder({ order: throughSluice(stack) }), perSecond: null, warmUpSeconds: 1, seconds };
  const { figures, atWarm } = await runLoad(generator, order, read);
  await delay(1_000); // Records of the last calls are written.
  const after = await read();
  await generator.stop();
  return ((after - atWarm) / figures.requests) * 1_000_000;
}

/** Processor time of this process and of Postgres for each call that is sealed, in microseconds. */
async function measureCallSeal({ postgres }: Stack, seal: () => Promise<number>): Promise<number> {
  const postgresBefore = await readFamilyCpuSeconds(postgres.pid);
  const before = process.cpuUsage();
  const calls = await seal();
  const { user, system } = process.cpuUsage(before);
  const ofPostgres = ((await readFamilyCpuSeconds(postgres.pid)) - postgresBefore) * 1_000_000;
  if (calls === 0) throw new Error('no calls were sealed');
  return (user + system + ofPostgres) / calls;
}

/** Between two replays: without it, the bench would measure the pace at which a workspace can read events (4 MiB/s). */
const pauseMs = 100;

async function measureStates({ apiUrl, adminKey }: Stack, pool: Pool, states: number): Promise<number> {
  const { rows } = await pool.query<{ id: string; updated_at: Date }>(
    'select id, updated_at from batch where version = $1',
    [streamEvents],
  );
  const latencies: number[] = [];
  for (let index = 0; index < states; index += 1) {
    const row = rows[index % rows.length];
    if (row === undefined) throw new Error(`no record has ${streamEvents} events`);
    const at = row.updated_at.toISOString();
    const startedMs = performance.now();
    const { statusCode, body } = await request(`${apiUrl}/v1/events/replay?stream=${row.id}&at=${at}`, {
      headers: { authorization: `Bearer ${adminKey}` },
    });
    const state = (await body.json()) as { version?: number };
    latencies.push(performance.now() - startedMs);
    await delay(pauseMs);
    if (statusCode !== 200 || state.version !== streamEvents) throw new Error(`no state: ${JSON.stringify(state)}`);
  }
  return percentile(
    latencies.toSorted((left, right) => left - right),
    0.99,
  );
}

type Repair = { stack: Stack; pool: Pool; eventLog: EventLog; workspaceId: string; connectionString: string };

async function measureRepair(
  { stack, pool, eventLog, workspaceId, connectionString }: Repair,
  { aloneSeconds }: Size,
  onProgress: (text: string) => void,
): Promise<Omit<RebuildFigures, 'stateP99Ms' | 'callMicroseconds'>> {
  const { rows: streams } = await pool.query<{ id: string }>('select id from batch');
  let appended = 0;
  let waitsMs: number[] = [];
  const append = (): Promise<unknown> => {
    const { id = '' } = streams[appended % streams.length] ?? {};
    appended += 1;
    const data = { chunk: 0, attempt: 1, unsettled: appended };
    const startedMs = performance.now();
    return eventLog.transact({ workspaceId, streams: [id], metadata }, (unit) => {
      waitsMs.push(performance.now() - startedMs);
      return unit.append(batchModel, id, [{ type: 'batch.chunk_redelivered', data }]);
    });
  };
  const client = createBenchClient(chatOrder({ order: throughSluice(stack) }));
  const call = (): Promise<void> =>
    new Promise((resolve, reject) => {
      client.send((status) => (status === 200 ? resolve() : reject(new Error(`a live call got ${status}`))));
    });
  /** Live calls and appends while `work` runs. */
  const underLoad = async <Result>(work: () => Promise<Result>) => {
    waitsMs = [];
    const [calls, appends] = [startProbe(call, 4), startProbe(append, 20)];
    const result = await work();
    const liveP99Ms = percentile(await calls.stop(), 0.99);
    await appends.stop();
    return { result, liveP99Ms, waitsMs: waitsMs.toSorted((left, right) => left - right) };
  };

  await underLoad(() => delay(500)); // warms up
  onProgress('record: live calls and appends alone');
  const alone = await underLoad(() => delay(aloneSeconds * 1_000));
  onProgress('record: check');
  const check = await checkRecords(connectionString, stack.directory);
  await pool.query(`update batch set model = 'wrong'`);
  onProgress('record: rebuild');
  const rebuild = await underLoad(() => checkRecords(connectionString, stack.directory, ['--repair']));
  const usualMs = percentile(alone.waitsMs, 0.99);
  return {
    events: check.events,
    rebuiltPerSecond: rebuild.result.events / (rebuild.result.durationMs / 1_000),
    checkedPerSecond: check.events / (check.durationMs / 1_000),
    peakBytes: rebuild.result.peakBytes,
    heldMs: {
      total: rebuild.waitsMs.reduce((sum, ms) => sum + Math.max(0, ms - usualMs), 0),
      longest: rebuild.waitsMs.at(-1) ?? Number.NaN,
    },
    liveP99Ms: { during: rebuild.liveP99Ms, alone: alone.liveP99Ms },
  };
}
