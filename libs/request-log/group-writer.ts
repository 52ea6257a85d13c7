import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import type { CopyRows } from './copy-rows.ts';
import { judgeInsertFailure, type WriteRows } from './insert-rows.ts';
import { cleanRow, type LogRow } from './log-entry.ts';
import type { SealedRows } from './sealed-rows.ts';

export type GroupWriter = {
  /**
   * Writes a group, however long the database is away; resolves with how many of its rows were lost, each of them
   * logged. Never rejects. After `givenUp` it waits for nothing: one try, and none when the database is away; `isAway`
   * then tells that rows were left. `isBehind` is for `copyRows`.
   */
  write(group: readonly SealedRows[], isBehind: boolean, givenUp: AbortSignal): Promise<number>;
  /** Makes the partition of a day, once in this process. Rejects when that fails. */
  prepareDay(day: string): Promise<void>;
  isAway(): boolean;
};

/** Rows, as objects only when they are asked for, and how they are written the first time. */
type Work = { days: ReadonlySet<string>; rows: () => readonly LogRow[]; first: () => Promise<void> };

// The delays between tries double until they are this many times the first.
const delayGrowthMax = 20;

export function createGroupWriter(deps: {
  /** For the first try of a group only: costs half, but fails when one of the rows is there already. */
  copyRows: CopyRows;
  /** For every later one: passes over rows that are there, because the reply to a COMMIT may have been lost. */
  insertRows: WriteRows;
  ensurePartition: (day: string) => Promise<void>;
  /** Whether the group is on the disk as well: then what is given up is not lost. */
  isKept?: () => boolean;
  /** Told whenever the database did not take rows, which then wait. */
  onAway?: () => void;
  logger: Logger;
  retryDelayMs: number;
}): GroupWriter {
  const { copyRows, insertRows, ensurePartition, isKept, onAway, logger, retryDelayMs } = deps;
  const preparedDays = new Set<string>();
  const cleaned = new WeakSet<LogRow>();
  let isAway = false;

  async function prepareDay(day: string): Promise<void> {
    if (preparedDays.has(day)) return;
    await ensurePartition(day);
    preparedDays.add(day);
  }

  function write(group: readonly SealedRows[], isBehind: boolean, givenUp: AbortSignal): Promise<number> {
    let rows: LogRow[] | undefined;
    return finish(
      {
        days: new Set(group.flatMap(({ days }) => days)),
        rows: () => (rows ??= group.flatMap((sealed) => sealed.rows())),
        first: () => copyRows(group, isBehind),
      },
      givenUp,
    );
  }

  function insert(rows: readonly LogRow[], givenUp: AbortSignal): Promise<number> {
    const days = new Set(rows.map((row) => row.recorded_on));
    return finish({ days, rows: () => rows, first: () => insertRows(rows) }, givenUp);
  }

  async function writeOnce({ days, rows, first }: Work, isFirst: boolean): Promise<void> {
    for (const day of days) await prepareDay(day);
    await (isFirst ? first() : insertRows(rows()));
  }

  async function finish(work: Work, givenUp: AbortSignal): Promise<number> {
    for (let tries = 0; ; tries += 1) {
      if (givenUp.aborted && isAway) return isKept?.() === true ? 0 : tellLost(work.rows(), logger);
      try {
        await unlessGivenUp(writeOnce(work, tries === 0), givenUp);
        if (isAway) logger.info('request log is written again');
        isAway = false;
        return 0;
      } catch (error) {
        const failure = judgeInsertFailure(error);
        if (failure === 'bad_row') return await writeApart(work.rows(), error, givenUp);
        // Somebody dropped the partition that we had seen: at once again, unless it is not that.
        if (failure === 'no_partition' && preparedDays.size > 0) {
          preparedDays.clear();
          continue;
        }
        isAway = true;
        onAway?.();
        logger.warn({ err: error, rows: work.rows().length, tries: tries + 1 }, 'request log waits for the database');
        await sleep(Math.min(retryDelayMs * 2 ** tries, retryDelayMs * delayGrowthMax), givenUp);
      }
    }
  }

  /** A group that holds a row which Postgres will never take: halves, until that row is alone. */
  async function writeApart(rows: readonly LogRow[], error: unknown, givenUp: AbortSignal): Promise<number> {
    const [first] = rows;
    if (first === undefined) return 0;
    if (rows.length > 1) {
      const middle = Math.ceil(rows.length / 2);
      const firstHalf = await insert(rows.slice(0, middle), givenUp);
      return firstHalf + (await insert(rows.slice(middle), givenUp));
    }
    if (cleaned.has(first)) {
      logger.error({ err: error, ...identityOf(first) }, 'request log row refused, it is lost');
      return 1;
    }
    const clean = cleanRow(first);
    cleaned.add(clean);
    logger.warn({ err: error, ...identityOf(first) }, 'request log row refused as it is; writing it cleaned');
    return await insert([clean], givenUp);
  }

  return { write, prepareDay, isAway: () => isAway };
}

/** What a person needs to find the call elsewhere; none of the texts that a provider or caller chose. */
const identityOf = ({
  sequence,
  request_id,
  workspace_id,
  kind,
  batch_id,
  batch_line,
  status,
  started_at,
}: LogRow) => ({
  sequence,
  request_id,
  workspace_id,
  kind,
  batch_id,
  batch_line,
  status,
  started_at,
});

/** A database that hangs must not hold up the end of the process; whether it took the rows is then unknown. */
async function unlessGivenUp(work: Promise<void>, givenUp: AbortSignal): Promise<void> {
  if (givenUp.aborted) return await work;
  await untilAborted(work, givenUp, () => {
    throw new Error('the database did not answer before the deadline of the stop');
  });
}

/** Logs which rows are lost, and returns how many. */
export function tellLost(rows: readonly LogRow[], logger: Logger): number {
  const range = { from: rows[0]?.sequence, to: rows.at(-1)?.sequence };
  const ids = rows.map((row) => row.request_id);
  logger.error({ rows: rows.length, sequence: range, request_ids: ids }, 'request log rows lost at the end');
  return rows.length;
}
