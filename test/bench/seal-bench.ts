import { execFile } from 'node:child_process';
import { createSecretKey } from 'node:crypto';
import path from 'node:path';
import { performance } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { sql, type Kysely } from 'kysely';
import { exportLog } from '#apps/cli/audit/export-log.ts';
import { createDiskBlobFolder } from '#libs/blobs/disk-blob-folder.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { ensureCheckpoint, hasNextEvent } from '#libs/event-log/subscriber.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { sealNext, type SealDeps } from '#libs/seal/seal-log.ts';
import { sealName } from '#libs/seal/seal-state.ts';
import { appendEvents } from './append-events.ts';
import { startProcess, type BenchProcess } from './start-process.ts';

export type SealFigures = {
  wantedPerSecond: number;
  /** Events per second in each round, next to a process that seals, and alone. */
  appended: { sealed: number[]; alone: number[] };
  /** From an event to the signed checkpoint that covers it, ascending, while events are appended. */
  lagMs: number[];
  sealed: { events: number; perSecond: number; cpuMicroseconds: number };
  verified: { events: number; perSecond: number };
};

type Place = { connectionString: string; directory: string };

const writers = 8;
const wantedPerSecond = 5_000;

/** Where the bench seals a log, in this process and in seal-process.ts. */
export const createSealDeps = (db: Kysely<Database>, folder: string): SealDeps => ({
  db,
  folder: createDiskBlobFolder(folder),
  keys: createAuditKeys([{ id: '', key: createSecretKey(Buffer.alloc(32, 1)) }], undefined),
  name: async () => 'bench/log',
  publishes: false,
  logger: createLogger({ name: 'bench', level: 'error' }),
});

/**
 * Appends at a steady rate with and without a process that seals, in interleaved rounds; seals a backlog in this process; and
 * exports the log and checks it with audit-verify.
 */
export async function measureSeal(
  { connectionString, directory }: Place,
  size: { rounds: number; seconds: number; events: number },
  onProgress: (text: string) => void,
): Promise<SealFigures> {
  const logger = createLogger({ name: 'bench', level: 'error' });
  const pool = createPool({ connectionString, applicationName: 'sluice-bench', max: writers + 2 }, logger);
  const db = createDatabase(pool);
  const folder = path.join(directory, 'audit');
  const eventLog = createEventLog(db);
  const appendPaced = (): Promise<number> =>
    appendEvents(eventLog, {
      writers,
      eventsPerTransaction: 10,
      perSecond: wantedPerSecond,
      goOn: (_appended, ms) => ms < size.seconds * 1_000,
    });
  try {
    await ensureCheckpoint(db, { name: sealName });
    const figures = { appended: { sealed: [] as number[], alone: [] as number[] }, lagMs: [] as number[] };
    await appendPaced(); // warms up
    for (let round = 0; round < size.rounds; round += 1) {
      onProgress(`record: append, round ${round + 1} of ${size.rounds}`);
      figures.appended.alone.push(await appendPaced());
      const sealer = await startSealer({ connectionString, directory }, folder);
      while (await hasNextEvent(db, sealName)) await delay(20);
      const lag = startLagProbe(db);
      figures.appended.sealed.push(await appendPaced());
      figures.lagMs.push(...(await lag.stop()));
      await sealer.stop();
    }
    onProgress('record: a backlog for the sealer');
    await appendEvents(eventLog, { writers, eventsPerTransaction: 50, goOn: (appended) => appended < size.events });
    await pool.query('vacuum analyze event');
    onProgress('record: seal');
    const deps = createSealDeps(db, folder);
    const sealed = await sealAll(deps);
    onProgress('record: export, verify');
    const verified = await verify(deps, path.join(directory, 'audit-export'));
    const lagMs = figures.lagMs.toSorted((left, right) => left - right);
    return { wantedPerSecond, ...figures, lagMs, sealed, verified };
  } finally {
    await db.destroy();
  }
}

async function startSealer({ connectionString, directory }: Place, folder: string): Promise<BenchProcess> {
  const sealer = await startProcess({
    name: 'sealer',
    script: 'test/bench/seal-process.ts',
    args: [folder],
    environment: { DATABASE_URL: connectionString },
    logFile: path.join(directory, 'sealer.log'),
  });
  await sealer.waitForLog(/^ready$/m);
  return sealer;
}

type Position = { epoch: number; transactionId: string; position: number };

/** Looks every 20 ms which event is the newest one, and which one the newest checkpoint covers. */
function startLagProbe(db: Kysely<Database>): { stop(): Promise<number[]> } {
  const latencies: number[] = [];
  const waiting: { event: Position; sinceMs: number }[] = [];
  const stopped = new AbortController();
  const look = async (): Promise<void> => {
    const { rows } = await sql<{ newest: Position; sealed: Position }>`
      select to_jsonb(event) as newest, to_jsonb(checkpoint) as sealed
      from (select epoch, transaction_id as "transactionId", position from event order by position desc limit 1) as event,
        (select epoch, transaction_id as "transactionId", position from subscription_checkpoint where name = ${sealName})
          as checkpoint`.execute(db);
    const [row] = rows;
    if (row === undefined) return;
    const nowMs = performance.now();
    while (waiting[0] && isUpTo(waiting[0].event, row.sealed)) latencies.push(nowMs - (waiting.shift()?.sinceMs ?? 0));
    if (!stopped.signal.aborted) waiting.push({ event: row.newest, sinceMs: nowMs });
  };
  const running = (async () => {
    while (!stopped.signal.aborted || waiting.length > 0) {
      await look();
      await delay(20);
    }
  })();
  return {
    async stop() {
      stopped.abort();
      await running;
      return latencies;
    },
  };
}

/** Whether an event comes before a position of the log, or is there. There is one epoch. */
function isUpTo(event: Position, { transactionId, position }: Position): boolean {
  const [own, other] = [BigInt(event.transactionId), BigInt(transactionId)];
  return own < other || (own === other && event.position <= position);
}

async function sealAll(deps: SealDeps): Promise<SealFigures['sealed']> {
  const count = async (): Promise<number> =>
    (await deps.db.selectFrom('seal').select('size').executeTakeFirstOrThrow()).size;
  const before = await count();
  const cpuBefore = process.cpuUsage();
  const startedMs = performance.now();
  while ((await sealNext(deps, 'bench')) === 'full');
  const seconds = (performance.now() - startedMs) / 1_000;
  const { user, system } = process.cpuUsage(cpuBefore);
  const events = (await count()) - before;
  return { events, perSecond: events / seconds, cpuMicroseconds: (user + system) / events };
}

async function verify(deps: SealDeps, out: string): Promise<SealFigures['verified']> {
  const { events } = await exportLog(deps, { out, from: null, to: null, workspaceId: null, onProgress: () => {} });
  const startedMs = performance.now();
  const { stdout } = await promisify(execFile)(process.execPath, [path.join(out, 'audit-verify.mjs'), out]);
  const seconds = (performance.now() - startedMs) / 1_000;
  if (!stdout.startsWith(`OK: ${events} events`)) throw new Error(`audit-verify: ${stdout}`);
  return { events, perSecond: events / seconds };
}
