import { v7 as uuidv7 } from 'uuid';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import { recoverRows } from './recover-rows.ts';
import type { RequestLogEntry } from '../row/log-entry.ts';
import { newLogUuid, utcDay } from '../row/log-id.ts';
import { ensureLogPartition, nextDay } from './log-partitions.ts';
import { createRowDelivery, type DeliveryDeps, type DeliveryStats } from './row-delivery.ts';
import { createProcessRecord, createWriteProcess, type WriteProcess } from './process-record.ts';

export type RequestLog = Part & {
  /** The ID of this process, in each of its rows. */
  processId: string;
  /** Accepts an entry to be written soon. Returns immediately and never throws. The log owns the entry from then on. */
  record(entry: RequestLogEntry): void;
  /** There is no room for the row of a new call, so no new call can start. Running calls can still be recorded. */
  isFull(): boolean;
  /** Resolves when everything recorded before is in the database, or was given up by `stop`. */
  flush(): Promise<void>;
  stats(): DeliveryStats;
};

export type RequestLogDeps = Omit<DeliveryDeps, 'processId' | 'ensurePartition' | 'givenUp'> & {
  /** The kind of this process, shown with its rows: `api`, `worker`. */
  app: string;
  clock: Clock;
  /** How long `stop` waits for the database. Default 10 s. */
  stopDeadlineMs?: number;
  /** How often the process reports its progress to the database. Default 15 s. */
  heartbeatMs?: number;
  /** Called with each entry that is recorded. Must not throw. */
  observe?: (entry: RequestLogEntry) => void;
  /** For tests. */
  ensurePartition?: (day: string) => Promise<void>;
  writeProcess?: WriteProcess;
};

const partitionCheckMs = 3_600_000;
/** How often the process looks for rows that stopped processes left on disk. */
const adoptMs = 60_000;

/**
 * The writer of the request log, one per process. Entries are written in groups after the answer, one write at a time, in the
 * order of `sequence`, which counts from 1 without gaps: a gap among a process's rows means a lost row. Rows missing at the
 * end show in `request_log_process`, where the process reports its progress (`sluice check logs` reads both).
 *
 * While the database is unavailable, rows wait on disk, or in memory if the disk is full. Once `queueRowsMax` rows wait
 * in memory, `isFull` makes the process reject new calls. A row that Postgres rejects does not block its group: it is
 * written cleaned, or logged.
 */
export function createRequestLog(deps: RequestLogDeps): RequestLog {
  const { app, db, logger, clock, stopDeadlineMs = 10_000 } = deps;
  const ensurePartition = deps.ensurePartition ?? ((day: string) => ensureLogPartition(db, day));
  const processId = uuidv7();
  const givenUp = new AbortController();
  const rows = createRowDelivery({ ...deps, processId, ensurePartition, givenUp: givenUp.signal });
  const processRecord = createProcessRecord({
    writeProcess: deps.writeProcess ?? createWriteProcess(db, { id: processId, app, startedAtMs: clock.now() }),
    // Rows are written in the order of their sequence, so those that are no longer in memory are the oldest.
    state() {
      const { waitingRows, lostRows } = rows.stats();
      return { lastSequence: rows.added(), writtenSequence: rows.added() - waitingRows, lostRows };
    },
    logger,
    heartbeatMs: deps.heartbeatMs,
  });
  const partitions = createPartitionLoop(rows.prepareDay, deps);
  const { disk } = deps;
  const adoption =
    disk &&
    createBackgroundLoop({
      name: 'request log adoption',
      periodMs: adoptMs,
      run: (signal) =>
        recoverRows({ ...disk, processId, db, ensurePartition, nowMs: clock.now(), logger, givenUp: signal }),
      logger,
    });
  let isStarted = false;
  let stopping: Promise<void> | undefined;

  async function stop(): Promise<void> {
    const stopped = Promise.all([partitions.stop(), adoption?.stop()]);
    // Rows that are not on disk by then are lost.
    const deadline = setTimeout(() => void rows.keep().then(() => givenUp.abort()), stopDeadlineMs);
    await rows.finish();
    // A process that was stopped before it started has no end to report.
    if (isStarted || rows.added() > 0) await processRecord.finish(givenUp.signal);
    clearTimeout(deadline);
    givenUp.abort();
    await stopped;
    rows.stopTimers();
  }

  return {
    name: 'request log',
    processId,
    async start() {
      isStarted = true;
      partitions.start();
      adoption?.start();
      await Promise.all([partitions.wake(), processRecord.start()]);
    },
    stop: () => (stopping ??= stop()),
    record(entry) {
      const sequence = rows.added() + 1;
      const recordedAtMs = clock.now();
      rows.add(entry, { recorded_on: utcDay(recordedAtMs), id: newLogUuid(recordedAtMs, sequence), sequence });
      processRecord.note(sequence, recordedAtMs);
      deps.observe?.(entry);
    },
    isFull: rows.isFull,
    flush: rows.flush,
    stats: rows.stats,
  };
}

const createPartitionLoop = (
  prepareDay: (day: string) => Promise<void>,
  { clock, logger }: Pick<RequestLogDeps, 'clock' | 'logger'>,
): BackgroundLoop =>
  createBackgroundLoop({
    name: 'request log partitions',
    periodMs: partitionCheckMs,
    // The first write of a day makes its partition if this failed.
    async run() {
      const today = utcDay(clock.now());
      await prepareDay(today);
      await prepareDay(nextDay(today));
    },
    logger,
  });
