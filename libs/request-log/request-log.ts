import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import { v7 as uuidv7 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { adoptRows } from './adopt-rows.ts';
import { createCopyRows, type CopyRows } from './copy-rows.ts';
import { createGroupWriter, tellLost } from './group-writer.ts';
import { createInsertRows, type WriteRows } from './insert-rows.ts';
import { boundEntry, entrySizeBytes, type LogRow, type RequestLogEntry } from './log-entry.ts';
import { newLogUuid, utcDay } from './log-id.ts';
import { ensureLogPartition, nextDay } from './log-partitions.ts';
import { createRowFile } from './row-file.ts';
import { createProcessRecord, createWriteProcess, type WriteProcess } from './process-record.ts';
import { createWaitingRows } from './waiting-rows.ts';

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
  /** Rows that are not in the database: in memory or on the disk, waiting or on their way. */
  waitingRows: number;
  /** Of them, those that are on the disk. */
  keptRows: number;
  /** Memory that they take. */
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
  /**
   * Where rows wait on the disk while the database is away, so that they outlast a kill of the process, up to `bytesMax`.
   * Other processes that write to the same database may have the same folder. Default: they wait in memory only.
   */
  disk?: { folder: string; bytesMax: number } | undefined;
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

const partitionCheckMs = 3_600_000;
/** How often rows go to the disk while they have to. */
const keepMs = 250;
/** How often it looks for what ended processes left on the disk. */
const adoptMs = 60_000;

/**
 * The writer of the request log, one per process. Entries are written after the answer in groups, one write at a time,
 * in the order of `sequence`, which counts from 1 without a gap: a gap among a process's rows is a loss. What is missing
 * at the end shows in `request_log_process`, where the process says how far it is (`sluice logs --check` reads both).
 *
 * While the database is away the rows wait on the disk, or here where that is full; when `queueRowsMax` wait here, `isFull`
 * tells the process to begin no new call. A row that Postgres refuses does not keep its group out: it is written cleaned, or logged without bodies.
 */
export function createRequestLog(deps: RequestLogDeps): RequestLog {
  const { app, db, logger, clock, queueRowsMax = 20_000, queueBytesMax = 64 * 1_048_576 } = deps;
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
      logger.error({ err: error, rows }, 'rows of the request log cannot be read back from the disk, they are lost');
    },
  });
  const ensurePartition = deps.ensurePartition ?? ((day: string) => ensureLogPartition(db, day));
  const retryDelayMs = deps.retryDelayMs ?? 100;
  const writer = createGroupWriter({
    copyRows: deps.copyRows ?? createCopyRows(deps.pool),
    insertRows: deps.insertRows ?? createInsertRows(db, processId),
    ensurePartition,
    isKept: () => waiting.isGroupKept(),
    onAway: () => startKeeping(),
    logger,
    retryDelayMs,
  });

  let sequence = 0;
  let lostRows = 0;
  let timer: NodeJS.Timeout | undefined;
  /** Runs for `groupIntervalMs` from the beginning of a group. */
  let pause: NodeJS.Timeout | undefined;
  let writing: Promise<void> | undefined;
  let stopping: Promise<void> | undefined;
  const processRecord = createProcessRecord({
    writeProcess: deps.writeProcess ?? createWriteProcess(db, { id: processId, app, startedAtMs: clock.now() }),
    // Rows are written in the order of their sequence: what is not in memory any more is the beginning.
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

  /** Given up, and on the disk, for another process to write. */
  const isLeft = (): boolean => givenUp.signal.aborted && writer.isAway() && waiting.isGroupKept();

  async function flush(): Promise<void> {
    const last = sequence;
    while (sequence - waiting.unwrittenRows() < last && !isLeft()) {
      start();
      await writing;
    }
  }

  /** Rows go to the disk from when the database is away, or behind, until it is not. */
  let keeping: Promise<void> | undefined;
  const isKeeping = (): boolean => writer.isAway() || waiting.memory().rows > queueRowsMax / 2;
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

  /** Nothing more is waited for: what is not on the disk by then is lost. */
  const giveUp = async (): Promise<void> => {
    await waiting.keep();
    givenUp.abort();
  };

  let adopting: Promise<void> | undefined;
  const stopped = new AbortController();
  const adopt = async (folder: string): Promise<void> => {
    try {
      await adoptRows({ folder, processId, db, ensurePartition, nowMs: clock.now(), logger, givenUp: stopped.signal });
    } catch (error) {
      logger.warn({ err: error }, 'rows of the request log that ended processes left on the disk not written');
    }
  };
  let adoptTimer: NodeJS.Timeout | undefined;
  const startAdopting = (): void => {
    const { disk } = deps;
    if (disk === undefined) return;
    const next = (): void => {
      adopting ??= adopt(disk.folder).finally(() => (adopting = undefined));
    };
    adoptTimer = setInterval(next, adoptMs).unref();
    next();
  };

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
      startAdopting();
      await Promise.all([prepareDays(), processRecord.start()]);
    },
    stop() {
      stopping ??= (async () => {
        clearInterval(partitionTimer);
        clearInterval(adoptTimer);
        stopped.abort();
        const deadline = setTimeout(() => void giveUp(), stopDeadlineMs);
        await flush();
        if (isLeft()) {
          const lost = waiting.inMemory();
          if (lost.length > 0) lostRows += tellLost(lost, logger);
          logger.warn({ rows: waiting.keptRows() }, 'request log rows left on the disk, for the next process to write');
        }
        await waiting.leave();
        // A process that was stopped before it began has no end to tell of.
        if (partitionTimer !== undefined || sequence > 0) await processRecord.finish(givenUp.signal);
        clearTimeout(deadline);
        givenUp.abort();
        await adopting;
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
      keptRows: waiting.keptRows(),
      waitingBytes: waiting.memory().bytes,
      writtenRows: sequence - waiting.unwrittenRows() - lostRows,
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
