import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import { v7 as uuidv7 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { recoverRows } from './recover-rows.ts';
import { createCopyRows, type CopyRows } from './copy-rows.ts';
import { createGroupWriter, logLostRows } from './group-writer.ts';
import { createInsertRows, type WriteRows } from './insert-rows.ts';
import { boundEntry, entrySizeBytes, type LogRow, type RequestLogEntry } from '../row/log-entry.ts';
import { newLogUuid, utcDay } from '../row/log-id.ts';
import { ensureLogPartition, nextDay } from './log-partitions.ts';
import { createRowFile } from './row-file.ts';
import { createProcessRecord, createWriteProcess, type WriteProcess } from './process-record.ts';
import { createWaitingRows } from './waiting-rows.ts';

export type RequestLog = Part & {
  /** The ID of this process, in each of its rows. */
  processId: string;
  /** Accepts an entry to be written soon. Returns immediately and never throws. The log owns the entry from then on. */
  record(entry: RequestLogEntry): void;
  /** There is no room for the row of a new call, so no new call can start. Running calls can still be recorded. */
  isFull(): boolean;
  /** Resolves when everything recorded before is in the database, or was given up by `stop`. */
  flush(): Promise<void>;
  stats(): RequestLogStats;
};

export type RequestLogStats = {
  /** Rows that are not in the database yet, in memory or on disk. */
  waitingRows: number;
  /** The number of them that are on disk. */
  rowsOnDisk: number;
  /** Their memory, in bytes. */
  waitingBytes: number;
  writtenRows: number;
  /** Rows that Postgres rejected, or that `stop` had to give up. Each was logged. */
  lostRows: number;
  /** Whether the last attempt to write failed because of the database. */
  isDatabaseDown: boolean;
};

export type RequestLogDeps = {
  /** The kind of this process, shown with its rows: `api`, `worker`. */
  app: string;
  db: Kysely<Database>;
  pool: Pool;
  logger: Logger;
  clock: Clock;
  /**
   * The folder for rows that wait on disk while the database is unavailable, up to `bytesMax`, so that they survive a
   * kill of the process. Processes that write to the same database can share the folder. Default: rows wait in memory
   * only.
   */
  disk?: { folder: string; bytesMax: number } | undefined;
  /** Rows in memory before `isFull`: 20,000 take about 20 MB. Absent: only `queueBytesMax` applies. */
  queueRowsMax?: number;
  /** The limit for their memory, in case metadata is large. Default 64 MiB. */
  queueBytesMax?: number;
  /** A group is written when it has this many rows (default 64) … */
  groupRowsMin?: number;
  /** … or this long after its first row (default 250 ms) … */
  groupWaitMs?: number;
  /**
   * … but, unless it has `groupRowsMax`, not before this much time since the previous group began. Default 50 ms: each group
   * has a fixed cost here and in Postgres, so a busy process should write fewer and larger ones.
   */
  groupIntervalMs?: number;
  /**
   * The maximum of rows per group. Rows are sealed 64 at a time, and a group consists of whole seals. Default 512, so
   * that a slow database can catch up.
   */
  groupRowsMax?: number;
  /** Wait before the next attempt while the database is unavailable, doubled each time up to 20 times this. Default 100 ms. */
  retryDelayMs?: number;
  /** How long `stop` waits for the database. Default 10 s. */
  stopDeadlineMs?: number;
  /** How often the process reports its progress to the database. Default 15 s. */
  heartbeatMs?: number;
  /** Called with each entry that is recorded, as it will be written. Must not throw. */
  observe?: (entry: RequestLogEntry) => void;
  /** For tests. */
  copyRows?: CopyRows;
  insertRows?: WriteRows;
  ensurePartition?: (day: string) => Promise<void>;
  writeProcess?: WriteProcess;
};

const partitionCheckMs = 3_600_000;
/** How often rows are moved to disk while the database is unavailable. */
const keepMs = 250;
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
  const { app, db, logger, clock, queueRowsMax = Infinity, queueBytesMax = 64 * 1_048_576 } = deps;
  const { groupRowsMin = 64, groupWaitMs = 250, groupIntervalMs = 50, groupRowsMax = 512 } = deps;
  const { stopDeadlineMs = 10_000 } = deps;
  const processId = uuidv7();
  const givenUp = new AbortController();
  const waiting = createWaitingRows({
    processId,
    groupRowsMax,
    file: deps.disk === undefined ? null : createRowFile({ ...deps.disk, processId, logger }),
    readFailed: (error, rows) => {
      lostRows += rows;
      logger.error({ err: error, rows }, 'request-log rows on the disk cannot be read; they are lost');
    },
  });
  const ensurePartition = deps.ensurePartition ?? ((day: string) => ensureLogPartition(db, day));
  const retryDelayMs = deps.retryDelayMs ?? 100;
  const writer = createGroupWriter({
    copyRows: deps.copyRows ?? createCopyRows(deps.pool),
    insertRows: deps.insertRows ?? createInsertRows(db, processId),
    ensurePartition,
    isKept: () => waiting.isGroupOnDisk(),
    onDatabaseDown: () => startKeeping(),
    logger,
    retryDelayMs,
  });

  let sequence = 0;
  let lostRows = 0;
  let timer: NodeJS.Timeout | undefined;
  /** Runs for `groupIntervalMs` from the start of a group. */
  let pause: NodeJS.Timeout | undefined;
  let writing: Promise<void> | undefined;
  let stopping: Promise<void> | undefined;
  const processRecord = createProcessRecord({
    writeProcess: deps.writeProcess ?? createWriteProcess(db, { id: processId, app, startedAtMs: clock.now() }),
    // Rows are written in the order of their sequence, so those that are no longer in memory are the oldest.
    state: () => ({
      lastSequence: sequence,
      writtenSequence: sequence - waiting.unwrittenRows(),
      lostRows,
    }),
    logger,
    heartbeatMs: deps.heartbeatMs,
  });

  const start = (): void => {
    clearTimeout(timer);
    timer = undefined;
    pause ??= setTimeout(() => {
      pause = undefined;
      schedule();
    }, groupIntervalMs);
    writing ??= writeGroup().finally(() => {
      writing = undefined;
      schedule();
    });
  };
  const schedule = (): void => {
    const rows = waiting.waitingRows();
    if (writing || rows === 0 || isLeft()) return;
    if (rows >= (pause ? groupRowsMax : groupRowsMin)) start();
    else timer ??= setTimeout(start, groupWaitMs);
  };

  async function writeGroup(): Promise<void> {
    const taken = waiting.take();
    const group = taken instanceof Promise ? await taken : taken;
    if (group === null) return;
    lostRows += await writer.write(group, waiting.waitingRows() > 0, givenUp.signal);
    const ending = isLeft() ? undefined : waiting.done();
    if (ending !== undefined) await ending;
  }

  /** The rows were given up, but they are on disk, from where another process will write them. */
  const isLeft = (): boolean => givenUp.signal.aborted && writer.isDatabaseDown() && waiting.isGroupOnDisk();

  async function flush(): Promise<void> {
    const last = sequence;
    while (sequence - waiting.unwrittenRows() < last && !isLeft()) {
      start();
      await writing;
    }
  }

  /** Rows are moved to disk while the database is unavailable or behind. */
  let keeping: Promise<void> | undefined;
  const isKeeping = (): boolean => writer.isDatabaseDown() || waiting.memory().rows > queueRowsMax / 2;
  const startKeeping = (): void => {
    if (deps.disk === undefined) return;
    keeping ??= keep().finally(() => (keeping = undefined));
  };
  const keep = async (): Promise<void> => {
    while (isKeeping() && !givenUp.signal.aborted) {
      await waiting.keep();
      await sleep(keepMs, givenUp.signal);
    }
  };

  /** Stops waiting. Rows that are not on disk by then are lost. */
  const giveUp = async (): Promise<void> => {
    await waiting.keep();
    givenUp.abort();
  };

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

  const partitions = createBackgroundLoop({
    name: 'request log partitions',
    periodMs: partitionCheckMs,
    // The first write of a day makes its partition if this failed.
    async run() {
      const today = utcDay(clock.now());
      await writer.prepareDay(today);
      await writer.prepareDay(nextDay(today));
    },
    logger,
  });
  let isStarted = false;

  return {
    name: 'request log',
    processId,
    async start() {
      isStarted = true;
      partitions.start();
      adoption?.start();
      await Promise.all([partitions.wake(), processRecord.start()]);
    },
    stop() {
      stopping ??= (async () => {
        const stopped = Promise.all([partitions.stop(), adoption?.stop()]);
        const deadline = setTimeout(() => void giveUp(), stopDeadlineMs);
        await flush();
        if (isLeft()) {
          const lost = waiting.inMemory();
          if (lost.length > 0) lostRows += logLostRows(lost, logger);
          logger.warn(
            { rows: waiting.rowsOnDisk() },
            'request-log rows were left on the disk for the next process to write',
          );
        }
        await waiting.leave();
        // A process that was stopped before it started has no end to report.
        if (isStarted || sequence > 0) await processRecord.finish(givenUp.signal);
        clearTimeout(deadline);
        givenUp.abort();
        await stopped;
        clearTimeout(timer);
        clearTimeout(pause);
      })();
      return stopping;
    },
    record(entry) {
      sequence += 1;
      const bounded = boundEntry(entry);
      const recordedAtMs = clock.now();
      waiting.add(toRow(bounded, sequence, recordedAtMs), entrySizeBytes(bounded));
      processRecord.note(sequence, recordedAtMs);
      deps.observe?.(bounded);
      if (waiting.memory().rows > queueRowsMax / 2) startKeeping();
      schedule();
    },
    isFull: () => {
      const { rows, bytes } = waiting.memory();
      return rows >= queueRowsMax || bytes >= queueBytesMax;
    },
    flush,
    stats: () => ({
      waitingRows: waiting.unwrittenRows(),
      rowsOnDisk: waiting.rowsOnDisk(),
      waitingBytes: waiting.memory().bytes,
      writtenRows: sequence - waiting.unwrittenRows() - lostRows,
      lostRows,
      isDatabaseDown: writer.isDatabaseDown(),
    }),
  };
}

// The spread must come first: only then does the runtime copy the entry as a whole instead of column by column.
const toRow = (entry: RequestLogEntry, sequence: number, recordedAtMs: number): LogRow => ({
  ...entry,
  duration_ms: toMicroseconds(entry.duration_ms),
  first_event_ms: entry.first_event_ms === null ? null : toMicroseconds(entry.first_event_ms),
  recorded_on: utcDay(recordedAtMs),
  id: newLogUuid(recordedAtMs, sequence),
  sequence,
});

// Measurements are not more precise. 1.6622750000024098 would only suggest so.
const toMicroseconds = (ms: number): number => Math.round(ms * 1_000) / 1_000;
