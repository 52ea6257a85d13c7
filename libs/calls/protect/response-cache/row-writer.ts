import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { KeptRow, StoredAnswers } from './stored-answers.ts';

export type RowWriter = {
  /** Adds a row that is written soon. Never waits and never fails: a row that cannot be written is dropped. */
  add: (row: KeptRow) => void;
  /** Writes the rows that wait. Resolves when they are written or dropped. */
  flush: () => Promise<void>;
  stats: () => { waitingRows: number; droppedRows: number };
};

const groupRowsMax = 64;
const groupBytesMax = 4_194_304;
const groupMs = 250;
// While the database is unavailable or slow. New rows beyond this are dropped, which a cache can afford.
const waitingBytesMax = 16_777_216;
/**
 * Bytes in addition to the body: key, head and the row's own objects. Without them, any number of small answers could
 * wait.
 */
const overheadBytes = 1_024;
const sizeOf = ({ entry }: KeptRow): number => entry.body.length + overheadBytes;

/** Groups rows into few statements, which no call waits for. */
export function createRowWriter({ stored, logger }: { stored: StoredAnswers; logger: Logger }): RowWriter {
  let waiting: KeptRow[] = [];
  let waitingBytes = 0;
  let droppedRows = 0;
  let timer: NodeJS.Timeout | undefined;
  let writing: Promise<void> | undefined;

  const takeGroup = (): KeptRow[] => {
    let bytes = 0;
    let rows = 0;
    for (const row of waiting) {
      if (rows > 0 && (rows === groupRowsMax || bytes + sizeOf(row) > groupBytesMax)) break;
      bytes += sizeOf(row);
      rows += 1;
    }
    waitingBytes -= bytes;
    return waiting.splice(0, rows);
  };

  const writeAll = async (): Promise<void> => {
    while (waiting.length > 0) {
      const group = takeGroup();
      try {
        await stored.keep(group);
      } catch (error) {
        droppedRows += group.length;
        logger.warn(
          { err: error, rows: group.length },
          'answers cannot be written to the response cache in the database',
        );
      }
    }
  };

  const flush = (): Promise<void> => {
    clearTimeout(timer);
    timer = undefined;
    writing ??= writeAll().finally(() => {
      writing = undefined;
    });
    return writing;
  };

  return {
    add: (row) => {
      if (waitingBytes + sizeOf(row) > waitingBytesMax) {
        droppedRows += 1;
        return;
      }
      waiting.push(row);
      waitingBytes += sizeOf(row);
      if (waiting.length >= groupRowsMax || waitingBytes >= groupBytesMax) void flush();
      else timer ??= setTimeout(() => void flush(), groupMs).unref();
    },
    flush,
    stats: () => ({ waitingRows: waiting.length, droppedRows }),
  };
}
