import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import { v7 as uuidv7 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { createCopyRows } from './copy-rows.ts';
import { createGroupWriter } from './group-writer.ts';
import { createInsertRows, type WriteRows } from './insert-rows.ts';
import { boundEntry, entrySizeBytes, type LogRow, type RequestLogEntry } from './log-entry.ts';
import { newLogUuid, utcDay } from './log-id.ts';
import { ensureLogPartition, nextDay } from './log-partitions.ts';

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
  db: Kysely<Database>;
  pool: Pool;
  logger: Logger;
  clock: Clock;
  /** Rows in memory at most before `isFull`. Default 20,000: four seconds of 5,000 rows/s, some 20 MB. */
  queueRowsMax?: number;
  /** The same for their memory, where metadata is large. Default 64 MiB. */
  queueBytesMax?: number;
  /** A group is written when it has this many rows … Default 64 (DESIGN: what a killed process may lose). */
  groupRowsMax?: number;
  /** … or this long after its first. Default 250 ms. */
  groupWaitMs?: number;
  /**
   * Rows of one group at most while rows come in faster than groups of `groupRowsMax` are written one after the other.
   * Default 512: they wait in memory either way, and this is what lets a slow database catch up.
   */
  backlogGroupRowsMax?: number;
  /** Wait before the next try while the database is away: this, doubled each time, to 20 times this. Default 100 ms. */
  retryDelayMs?: number;
  /** How long `stop` waits for the database. Default 10 s. */
  stopDeadlineMs?: number;
  /** For tests. */
  copyRows?: WriteRows;
  insertRows?: WriteRows;
  ensurePartition?: (day: string) => Promise<void>;
};

type Waiting = { sequence: number; recordedAtMs: number; sizeBytes: number; entry: RequestLogEntry };

const partitionCheckMs = 3_600_000;

/**
 * The writer of the request log, one per process. Entries are written after the answer in groups, one write at a time,
 * in the order of `sequence`, which counts from 1 without a gap: a gap among a process's rows is a loss.
 *
 * While the database is away the rows wait here, and when `queueRowsMax` do, `isFull` tells the process to begin no
 * new call. A row that Postgres refuses does not keep its group out: it is written cleaned, or logged without bodies.
 */
export function createRequestLog(deps: RequestLogDeps): RequestLog {
  const { db, logger, clock, queueRowsMax = 20_000, queueBytesMax = 64 * 1_048_576 } = deps;
  const { groupRowsMax = 64, groupWaitMs = 250, backlogGroupRowsMax = 512, stopDeadlineMs = 10_000 } = deps;
  const processId = uuidv7();
  const writer = createGroupWriter({
    copyRows: deps.copyRows ?? createCopyRows(deps.pool, processId),
    insertRows: deps.insertRows ?? createInsertRows(db, processId),
    ensurePartition: deps.ensurePartition ?? ((day) => ensureLogPartition(db, day)),
    logger,
    retryDelayMs: deps.retryDelayMs ?? 100,
  });

  let waiting: Waiting[] = [];
  let inFlightRows = 0;
  let waitingBytes = 0;
  let sequence = 0;
  let lostRows = 0;
  let timer: NodeJS.Timeout | undefined;
  let draining: Promise<void> | undefined;
  let flushUpTo = 0;
  let stopping: Promise<void> | undefined;
  const givenUp = new AbortController();

  const isDue = (): boolean => waiting.length >= groupRowsMax || (waiting[0]?.sequence ?? Infinity) <= flushUpTo;
  const start = (): void => {
    clearTimeout(timer);
    timer = undefined;
    draining ??= drain().finally(() => {
      draining = undefined;
      if (waiting.length > 0) schedule();
    });
  };
  const schedule = (): void => {
    if (draining) return;
    if (isDue()) start();
    else timer ??= setTimeout(start, groupWaitMs);
  };

  async function drain(): Promise<void> {
    do {
      const group = waiting.slice(0, backlogGroupRowsMax);
      waiting = waiting.slice(group.length);
      inFlightRows = group.length;
      lostRows += await writer.write(group.map(toRow), givenUp.signal);
      inFlightRows = 0;
      for (const { sizeBytes } of group) waitingBytes -= sizeBytes;
    } while (isDue());
  }

  async function flush(): Promise<void> {
    const last = sequence;
    flushUpTo = Math.max(flushUpTo, last);
    const isWritten = (): boolean => inFlightRows === 0 && (waiting[0]?.sequence ?? Infinity) > last;
    while (!isWritten()) {
      start();
      await draining;
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
      await prepareDays();
    },
    stop() {
      stopping ??= (async () => {
        clearInterval(partitionTimer);
        const deadline = setTimeout(() => givenUp.abort(), stopDeadlineMs);
        await flush();
        clearTimeout(deadline);
        givenUp.abort();
        clearTimeout(timer);
      })();
      return stopping;
    },
    record(entry) {
      sequence += 1;
      const bounded = boundEntry(entry);
      const sizeBytes = entrySizeBytes(bounded);
      waitingBytes += sizeBytes;
      waiting.push({ sequence, recordedAtMs: clock.now(), sizeBytes, entry: bounded });
      schedule();
    },
    isFull: () => waiting.length + inFlightRows >= queueRowsMax || waitingBytes >= queueBytesMax,
    flush,
    stats: () => ({
      waitingRows: waiting.length + inFlightRows,
      waitingBytes,
      writtenRows: sequence - waiting.length - inFlightRows - lostRows,
      lostRows,
      isAway: writer.isAway(),
    }),
  };
}

// The spread comes first: only then does the runtime copy the entry as a whole instead of column by column.
const toRow = ({ sequence, recordedAtMs, entry }: Waiting): LogRow => ({
  ...entry,
  recorded_on: utcDay(recordedAtMs),
  id: newLogUuid(recordedAtMs, sequence),
  sequence,
});
