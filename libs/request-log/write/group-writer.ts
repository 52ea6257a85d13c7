import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import type { CopyRows } from './copy-rows.ts';
import { classifyInsertFailure, type WriteRows } from './insert-rows.ts';
import { cleanRow, type LogRow } from '../row/log-entry.ts';
import type { RowsAndPacks } from './pack-rows.ts';
import { readAllRows, type SealedRows } from './sealed-rows.ts';

export type GroupWriter = {
  /**
   * Writes a group, however long the database is unavailable. Resolves with the number of lost rows, each of which was
   * logged. Never rejects. After `givenUp` it does not wait: it tries once, or not at all if the database is
   * unavailable, and `isDatabaseDown` reports that rows were left. `isBehind` is passed to `copyRows`.
   */
  write(group: readonly SealedRows[], isBehind: boolean, givenUp: AbortSignal): Promise<number>;
  /** Creates the partition of a day, once per process. Rejects if that fails. */
  prepareDay(day: string): Promise<void>;
  isDatabaseDown(): boolean;
};

/** What is written, which becomes objects only on request, and the function for its first write. */
type Work = {
  days: ReadonlySet<string>;
  content: () => RowsAndPacks;
  /** All rows, without packs. */
  rows: () => readonly LogRow[];
  first: () => Promise<void>;
  /** The seals that it consists of. */
  seals: readonly SealedRows[];
};

// The delays between attempts double up to this multiple of the first.
const delayGrowthMax = 20;

export function createGroupWriter(deps: {
  /** For the first attempt of a group only: half the cost, but it fails if one of the rows already exists. */
  copyRows: CopyRows;
  /** For all later attempts: skips existing rows, because the answer to a COMMIT may have been lost. */
  insertRows: WriteRows;
  ensurePartition: (day: string) => Promise<void>;
  /** Whether the group is also on disk. If so, no row is lost when the group is given up. */
  isKept?: () => boolean;
  /** Called whenever the database has not accepted rows, which then wait. */
  onDatabaseDown?: () => void;
  logger: Logger;
  retryDelayMs: number;
}): GroupWriter {
  const { copyRows, insertRows, ensurePartition, isKept, onDatabaseDown, logger, retryDelayMs } = deps;
  const preparedDays = new Set<string>();
  const cleanBadRow = createRowCleaner(logger);
  let isDatabaseDown = false;

  async function prepareDay(day: string): Promise<void> {
    if (preparedDays.has(day)) return;
    await ensurePartition(day);
    preparedDays.add(day);
  }

  const write = (group: readonly SealedRows[], isBehind: boolean, givenUp: AbortSignal): Promise<number> =>
    finish(
      toWork(group, () => copyRows(group, isBehind)),
      givenUp,
    );

  function insert(rows: readonly LogRow[], givenUp: AbortSignal): Promise<number> {
    const content = { rows, packs: [] };
    const days = new Set(rows.map((row) => row.recorded_on));
    const first = (): Promise<void> => insertRows(content);
    return finish({ days, content: () => content, rows: () => rows, first, seals: [] }, givenUp);
  }

  async function writeOnce({ days, content, first }: Work, isFirst: boolean): Promise<void> {
    for (const day of days) await prepareDay(day);
    await (isFirst ? first() : insertRows(content()));
  }

  async function finish(work: Work, givenUp: AbortSignal): Promise<number> {
    for (let tries = 0; ; tries += 1) {
      if (givenUp.aborted && isDatabaseDown) return isKept?.() === true ? 0 : logLostRows(work.rows(), logger);
      try {
        await unlessGivenUp(writeOnce(work, tries === 0), givenUp);
        if (isDatabaseDown) logger.info('the request log can be written again');
        isDatabaseDown = false;
        return 0;
      } catch (error) {
        const failure = classifyInsertFailure(error);
        if (failure === 'bad_row') return await writeApart(work, error, givenUp);
        // The partition was deleted after this process had seen it. Retry immediately, unless that is not the cause.
        if (failure === 'no_partition' && preparedDays.size > 0) {
          preparedDays.clear();
          continue;
        }
        isDatabaseDown = true;
        onDatabaseDown?.();
        logger.warn(
          { err: error, rows: work.rows().length, tries: tries + 1 },
          'the request log is waiting for the database',
        );
        await sleep(Math.min(retryDelayMs * 2 ** tries, retryDelayMs * delayGrowthMax), givenUp);
      }
    }
  }

  /**
   * Writes a group with a row that Postgres will never accept. It is divided into its seals, and the seal with that row
   * in half, without packs, until the row is alone. A seal is written either with its packs or without, even if another
   * process writes it again from disk: a seal without such a row never loses its packs.
   */
  async function writeApart({ seals, rows: read }: Work, error: unknown, givenUp: AbortSignal): Promise<number> {
    if (seals.length > 1) {
      let lost = 0;
      for (const seal of seals)
        lost += await finish(
          toWork([seal], () => insertRows(seal.content())),
          givenUp,
        );
      return lost;
    }
    const rows = read();
    const [first] = rows;
    if (first === undefined) return 0;
    if (rows.length > 1) {
      const middle = Math.ceil(rows.length / 2);
      const firstHalf = await insert(rows.slice(0, middle), givenUp);
      return firstHalf + (await insert(rows.slice(middle), givenUp));
    }
    const clean = cleanBadRow(first, error);
    return clean === undefined ? 1 : await insert([clean], givenUp);
  }

  return { write, prepareDay, isDatabaseDown: () => isDatabaseDown };
}

function toWork(group: readonly SealedRows[], first: () => Promise<void>): Work {
  let contents: readonly RowsAndPacks[] | undefined;
  const read = (): readonly RowsAndPacks[] => (contents ??= group.map((sealed) => sealed.content()));
  let rows: LogRow[] | undefined;
  return {
    days: new Set(group.flatMap(({ days }) => days)),
    content: () => ({
      rows: read().flatMap((content) => content.rows),
      packs: read().flatMap(({ packs }) => packs),
    }),
    // The same objects each time: rows that were cleaned are remembered.
    rows: () => (rows ??= group.flatMap(readAllRows)),
    first,
    seals: group,
  };
}

/** Returns a rejected row without invalid characters, or undefined if the row already is such a row. Logs both. */
function createRowCleaner(logger: Logger): (row: LogRow, error: unknown) => LogRow | undefined {
  const cleaned = new WeakSet<LogRow>();
  return (row, error) => {
    const fields = { err: error, ...identityOf(row) };
    if (cleaned.has(row)) {
      logger.error(fields, 'the database rejected a request-log row; the row is lost');
      return undefined;
    }
    logger.warn(fields, 'the database rejected a request-log row; writing it without invalid characters');
    const clean = cleanRow(row);
    cleaned.add(clean);
    return clean;
  };
}

/** The data for finding the call elsewhere, without any text that a provider or caller chose. */
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

/** A hanging database must not delay the end of the process. It is unknown whether it accepted the rows. */
async function unlessGivenUp(work: Promise<void>, givenUp: AbortSignal): Promise<void> {
  if (givenUp.aborted) return await work;
  await untilAborted(work, givenUp, () => {
    throw new Error('the database did not respond before the shutdown deadline');
  });
}

/** Logs the lost rows, and returns their number. */
export function logLostRows(rows: readonly LogRow[], logger: Logger): number {
  const range = { from: rows[0]?.sequence, to: rows.at(-1)?.sequence };
  const ids = rows.map((row) => row.request_id);
  logger.error({ rows: rows.length, sequence: range, request_ids: ids }, 'request-log rows lost during shutdown');
  return rows.length;
}
