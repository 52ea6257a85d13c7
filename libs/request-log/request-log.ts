import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import { v7 as uuidv7 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { createCopyRows, type CopyRows } from './copy-rows.ts';
import { createGroupWriter } from './group-writer.ts';
import { createInsertRows, type WriteRows } from './insert-rows.ts';
import { boundEntry, entrySizeBytes, type LogRow, type RequestLogEntry } from './log-entry.ts';
import { newLogUuid, utcDay } from './log-id.ts';
import { ensureLogPartition, nextDay } from './log-partitions.ts';
import { sealRows, type SealedRows } from './sealed-rows.ts';
import { createProcessRecord, createWriteProcess, type WriteProcess } from './process-record.ts';

export type RequestLog = Part & {
  /** Of this process, in each of its rows. */
  processId: string;
  /** Takes an entry, to be written soon; returns at once and never throws. The log owns the entry from then on. */
  record(entry: RequestLogEntry): void;
  /** No new call may be begun now: its row would have no place. What runs already may still be recorded. */
  isFull(): boolean;
  /** Resolves when everything recorded before is in the database, or given up by `stop`. */
  flush(): Promise<void>;
  stats(): RequestLogStats;
};

export type RequestLogStats = {
  /** Rows in memory: waiting, or on their way. */
  waitingRows: number;
  waitingBytes: number;
  writtenRows: number;
  /** Rows that Postgres refused, or that `stop` had to give up. Each was logged. */
  lostRows: number;
  /** Whether the last try to write failed because of the database. */
  isAway: boolean;
};

export type RequestLogDeps = {
  /** What this process is, for whoever looks for its rows: `api`, `worker`. */
  app: string;
  db: Kysely<Database>;
  pool: Pool;
  logger: Logger;
  clock: Clock;
  /** Rows in memory at most before `isFull`. Default 20,000: four seconds of 5,000 rows/s, some 20 MB. */
  queueRowsMax?: number;
  /** The same for their memory, where metadata is large. Default 64 MiB. */
  queueBytesMax?: number;
  /** A group is written when it has this many rows … Default 64. */
  groupRowsMin?: number;
  /** … or this long after its first. Default 250 ms. */
  groupWaitMs?: number;
  /**
   * … but, unless it is as large as it may be, no sooner than this after the one before was begun. Default 50 ms: each
   * group costs this process and Postgres something of its own, and a busy process writes fewer and larger ones.
   */
  groupIntervalMs?: number;
  /** Rows of one group at most; rows are sealed 64 at a time, and a group holds whole seals. Default 512: more only wait in memory, and this lets a slow database catch up. */
  groupRowsMax?: number;
  /** Wait before the next try while the database is away: this, doubled each time, to 20 times this. Default 100 ms. */
  retryDelayMs?: number;
  /** How long `stop` waits for the database. Default 10 s. */
  stopDeadlineMs?: number;
  /** How often the process tells the database how far it is. Default 15 s. */
  heartbeatMs?: number;
  /** For tests. */
  copyRows?: CopyRows;
  insertRows?: WriteRows;
  ensurePartition?: (day: string) => Promise<void>;
  writeProcess?: WriteProcess;
};

// As objects rows live for a few milliseconds under full load, and are as many as one write to Postgres takes well.
const sealedRowsMax = 64;

const partitionCheckMs = 3_600_000;

/**
 * The writer of the request log, one per process. Entries are written after the answer in groups, one write at a time,
 * in the order of `sequence`, which counts from 1 without a gap: a gap among a process's rows is a loss. What is missing
 * at the end shows in `request_log_process`, where the process says how far it is (`sluice logs --check` reads both).
 *
 * While the database is away the rows wait here, and when `queueRowsMax` do, `isFull` tells the process to begin no
 * new call. A row that Postgres refuses does not keep its group out: it is written cleaned, or logged without bodies.
 */
export function createRequestLog(deps: RequestLogDeps): RequestLog {
  const { app, db, logger, clock, queueRowsMax = 20_000, queueBytesMax = 64 * 1_048_576 } = deps;
  const { groupRowsMin = 64, groupWaitMs = 250, groupIntervalMs = 50, groupRowsMax = 512 } = deps;
  const { stopDeadlineMs = 10_000 } = deps;
  const processId = uuidv7();
  const writer = createGroupWriter({
    copyRows: deps.copyRows ?? createCopyRows(deps.pool),
    insertRows: deps.insertRows ?? createInsertRows(db, processId),
    ensurePartition: deps.ensurePartition ?? ((day) => ensureLogPartition(db, day)),
    logger,
    retryDelayMs: deps.retryDelayMs ?? 100,
  });

  /** What waits, oldest first: the sealed rows, then the open ones. */
  let sealed: SealedRows[] = [];
  let open: LogRow[] = [];
  let openBytes = 0;
  let waitingRows = 0;
  let inFlightRows = 0;
  /** Of all rows that are not written yet. */
  let waitingBytes = 0;
  let sequence = 0;
  let lostRows = 0;
  let timer: NodeJS.Timeout | undefined;
  /** Runs for `groupIntervalMs` from the beginning of a group. */
  let pause: NodeJS.Timeout | undefined;
  let writing: Promise<void> | undefined;
  let stopping: Promise<void> | undefined;
  const givenUp = new AbortController();
  const processRecord = createProcessRecord({
    writeProcess: deps.writeProcess ?? createWriteProcess(db, { id: processId, app, startedAtMs: clock.now() }),
    // Rows are written in the order of their sequence: what is not in memory any more is the beginning.
    state: () => ({
      lastSequence: sequence,
      writtenSequence: sequence - waitingRows - inFlightRows,
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
    if (writing || waitingRows === 0) return;
    if (waitingRows >= (pause ? groupRowsMax : groupRowsMin)) start();
    else timer ??= setTimeout(start, groupWaitMs);
  };

  const seal = (): void => {
    if (open.length === 0) return;
    const rows = sealRows(open, processId, openBytes);
    waitingBytes += rows.sizeBytes - openBytes;
    sealed.push(rows);
    open = [];
    openBytes = 0;
  };

  /** What is written next: whole seals, up to the bound of a group, but at least one. */
  const takeGroup = (): SealedRows[] => {
    seal();
    let rows = 0;
    const end = sealed.findIndex(({ count }) => (rows += count) > groupRowsMax);
    return sealed.splice(0, end === -1 ? sealed.length : Math.max(1, end));
  };

  async function writeGroup(): Promise<void> {
    const group = takeGroup();
    inFlightRows = group.reduce((sum, { count }) => sum + count, 0);
    waitingRows -= inFlightRows;
    lostRows += await writer.write(group, waitingRows > 0, givenUp.signal);
    inFlightRows = 0;
    for (const { sizeBytes } of group) waitingBytes -= sizeBytes;
  }

  async function flush(): Promise<void> {
    const last = sequence;
    const isWritten = (): boolean => inFlightRows === 0 && sequence - waitingRows >= last;
    while (!isWritten()) {
      start();
      await writing;
    }
  }

  let partitionTimer: NodeJS.Timeout | undefined;
  const prepareDays = async (): Promise<void> => {
    try {
      const today = utcDay(clock.now());
      await writer.prepareDay(today);
      await writer.prepareDay(nextDay(today));
    } catch (error) {
      logger.warn({ err: error }, 'partitions of the request log not prepared'); // the first write makes its own
    }
  };

  return {
    name: 'request log',
    processId,
    async start() {
      partitionTimer ??= setInterval(() => void prepareDays(), partitionCheckMs).unref();
      await Promise.all([prepareDays(), processRecord.start()]);
    },
    stop() {
      stopping ??= (async () => {
        clearInterval(partitionTimer);
        const deadline = setTimeout(() => givenUp.abort(), stopDeadlineMs);
        await flush();
        // A process that was stopped before it began has no end to tell of.
        if (partitionTimer !== undefined || sequence > 0) await processRecord.finish(givenUp.signal);
        clearTimeout(deadline);
        givenUp.abort();
        clearTimeout(timer);
        clearTimeout(pause);
      })();
      return stopping;
    },
    record(entry) {
      sequence += 1;
      const bounded = boundEntry(entry);
      const sizeBytes = entrySizeBytes(bounded);
      waitingBytes += sizeBytes;
      openBytes += sizeBytes;
      waitingRows += 1;
      const recordedAtMs = clock.now();
      open.push(toRow(bounded, sequence, recordedAtMs));
      if (open.length === sealedRowsMax) seal();
      processRecord.note(sequence, recordedAtMs);
      schedule();
    },
    isFull: () => waitingRows + inFlightRows >= queueRowsMax || waitingBytes >= queueBytesMax,
    flush,
    stats: () => ({
      waitingRows: waitingRows + inFlightRows,
      waitingBytes,
      writtenRows: sequence - waitingRows - inFlightRows - lostRows,
      lostRows,
      isAway: writer.isAway(),
    }),
  };
}

// The spread comes first: only then does the runtime copy the entry as a whole instead of column by column.
const toRow = (entry: RequestLogEntry, sequence: number, recordedAtMs: number): LogRow => ({
  ...entry,
  duration_ms: toMicroseconds(entry.duration_ms),
  first_event_ms: entry.first_event_ms === null ? null : toMicroseconds(entry.first_event_ms),
  recorded_on: utcDay(recordedAtMs),
  id: newLogUuid(recordedAtMs, sequence),
  sequence,
});

// What is measured is no finer, and 1.6622750000024098 is no time.
const toMicroseconds = (ms: number): number => Math.round(ms * 1_000) / 1_000;
