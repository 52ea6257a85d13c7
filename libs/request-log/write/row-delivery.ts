import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { RequestLogEntry, RowPosition } from '../row/log-entry.ts';
import { createCopyRows, type CopyRows } from './copy-rows.ts';
import { createGroupSchedule, type GroupOptions } from './group-schedule.ts';
import { createGroupWriter, logLostRows } from './group-writer.ts';
import { createInsertRows, type WriteRows } from './insert-rows.ts';
import { createRowFile, type RowDisk } from './row-file.ts';
import { createWaitingRows } from './waiting-rows.ts';

export type DeliveryStats = {
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

export type DeliveryDeps = GroupOptions & {
  processId: string;
  db: Kysely<Database>;
  pool: Pool;
  logger: Logger;
  /**
   * Where rows wait while the database is unavailable, so that they survive a kill of the process. Default: rows wait in
   * memory only.
   */
  disk?: RowDisk | undefined;
  /** Rows in memory before `isFull`: 20,000 take about 20 MB. Absent: only `queueBytesMax` applies. */
  queueRowsMax?: number;
  /** The limit for their memory, in case metadata is large. Default 64 MiB. */
  queueBytesMax?: number;
  /** Wait before the next attempt while the database is unavailable, doubled each time up to 20 times this. Default 100 ms. */
  retryDelayMs?: number;
  ensurePartition: (day: string) => Promise<void>;
  /** Aborts when the process cannot wait for the database any longer. */
  givenUp: AbortSignal;
  /** For tests. */
  copyRows?: CopyRows;
  insertRows?: WriteRows;
};

/** How often rows are moved to disk while the database is unavailable. */
const keepMs = 250;

/** Brings rows to the database in groups, in their order, and lets them wait on disk or in memory until it accepts them. */
export function createRowDelivery(deps: DeliveryDeps) {
  const { processId, db, logger, disk, givenUp } = deps;
  const { queueRowsMax = Infinity, queueBytesMax = 64 * 1_048_576, groupRowsMax = 512 } = deps;
  let added = 0;
  let lostRows = 0;
  const waiting = createWaitingRows({
    processId,
    groupRowsMax,
    file: disk === undefined ? null : createRowFile({ ...disk, processId, logger }),
    readFailed: (error, rows) => {
      lostRows += rows;
      logger.error({ err: error, rows }, 'request-log rows on the disk cannot be read; they are lost');
    },
  });
  const writer = createGroupWriter({
    copyRows: deps.copyRows ?? createCopyRows(deps.pool),
    insertRows: deps.insertRows ?? createInsertRows(db, processId),
    ensurePartition: deps.ensurePartition,
    isKept: () => waiting.isGroupOnDisk(),
    onDatabaseDown: () => startKeeping(),
    logger,
    retryDelayMs: deps.retryDelayMs ?? 100,
  });

  /** The rows were given up, but they are on disk, from where another process will write them. */
  const isLeft = (): boolean => givenUp.aborted && writer.isDatabaseDown() && waiting.isGroupOnDisk();

  async function writeGroup(): Promise<void> {
    const taken = waiting.take();
    const group = taken instanceof Promise ? await taken : taken;
    if (group === null) return;
    lostRows += await writer.write(group, waiting.waitingRows() > 0, givenUp);
    const ending = isLeft() ? undefined : waiting.done();
    if (ending !== undefined) await ending;
  }
  const waitingRows = (): number => (isLeft() ? 0 : waiting.waitingRows());
  const schedule = createGroupSchedule({ ...deps, groupRowsMax, waitingRows, writeGroup });

  /** Resolves when every row that was added before is in the database, or was given up. */
  async function flush(): Promise<void> {
    const last = added;
    while (added - waiting.unwrittenRows() < last && !isLeft()) await schedule.writeNow();
  }

  /** Rows are moved to disk while the database is unavailable or behind. */
  let keeping: Promise<void> | undefined;
  const isBehind = (): boolean => waiting.memoryRows() > queueRowsMax / 2;
  const startKeeping = (): void => {
    if (disk === undefined) return;
    keeping ??= keepWhileNeeded().finally(() => (keeping = undefined));
  };
  const keepWhileNeeded = async (): Promise<void> => {
    while ((writer.isDatabaseDown() || isBehind()) && !givenUp.aborted) {
      await waiting.keep();
      await sleep(keepMs, givenUp);
    }
  };

  return {
    add(entry: RequestLogEntry, position: RowPosition): void {
      added += 1;
      waiting.add(entry, position);
      if (isBehind()) startKeeping();
      schedule.wake();
    },
    /** The number of rows that were added. */
    added: () => added,
    isFull: () => waiting.memoryRows() >= queueRowsMax || waiting.memoryBytes() >= queueBytesMax,
    flush,
    keep: waiting.keep,
    /** Writes all rows. Those that were given up stay on disk; those that are only in memory are logged as lost. */
    async finish(): Promise<void> {
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
    },
    stopTimers: schedule.stopTimers,
    prepareDay: (day: string) => writer.prepareDay(day),
    stats: (): DeliveryStats => ({
      waitingRows: waiting.unwrittenRows(),
      rowsOnDisk: waiting.rowsOnDisk(),
      waitingBytes: waiting.memoryBytes(),
      writtenRows: added - waiting.unwrittenRows() - lostRows,
      lostRows,
      isDatabaseDown: writer.isDatabaseDown(),
    }),
  };
}
