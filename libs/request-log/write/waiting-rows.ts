import type { RequestLogEntry, RowPosition } from '../row/log-entry.ts';
import type { RowFile } from './row-file.ts';
import { readAllRows, RowSealer, type SealedRows } from './sealed-rows.ts';

/** The group that is being written to the database. */
type Group = { seals: readonly SealedRows[]; rows: number; bytes: number; isOnDisk: boolean };

// Under full load, a seal of this size is full after a few milliseconds, and it suits one write to Postgres.
const sealedRowsMax = 64;

/** Rows in memory, oldest first: seals, then up to `sealedRowsMax` rows that are not sealed yet. */
class RowMemory {
  /** The number of rows. */
  rows = 0;
  readonly #open: RowSealer;
  #sealed: SealedRows[] = [];
  #sealedBytes = 0;

  constructor(processId: string) {
    this.#open = new RowSealer(processId);
  }

  get bytes(): number {
    return this.#sealedBytes + this.#open.sizeBytes;
  }

  add(entry: RequestLogEntry, position: RowPosition): void {
    this.#open.add(entry, position);
    this.rows += 1;
    if (this.#open.count === sealedRowsMax) this.#seal();
  }

  /** All rows, as seals. */
  seals(): readonly SealedRows[] {
    this.#seal();
    return [...this.#sealed];
  }

  /** Removes and returns the oldest seals: up to `rowsMax` rows, but at least one seal if there is a row. */
  take(rowsMax: number): SealedRows[] {
    this.#seal();
    let rows = 0;
    const end = this.#sealed.findIndex(({ count }) => (rows += count) > rowsMax);
    return this.drop(end === -1 ? this.#sealed.length : Math.max(1, end));
  }

  /** Removes and returns the oldest `count` seals. */
  drop(count: number): SealedRows[] {
    const dropped = this.#sealed.splice(0, count);
    for (const { count: rows, sizeBytes } of dropped) {
      this.rows -= rows;
      this.#sealedBytes -= sizeBytes;
    }
    return dropped;
  }

  #seal(): void {
    if (this.#open.count === 0) return;
    const rows = this.#open.seal();
    this.#sealed.push(rows);
    this.#sealedBytes += rows.sizeBytes;
  }
}

/**
 * Rows on their way to the database, oldest first: the group being written, then those on disk, then those in memory.
 * `file` is null if rows are never stored on disk. `readFailed` is called when the disk cannot return rows, which are
 * lost.
 */
export function createWaitingRows(options: {
  processId: string;
  /** The maximum of one group. A group has at least one seal. */
  groupRowsMax: number;
  file: RowFile | null;
  readFailed: (error: unknown, rows: number) => void;
}) {
  const { processId, groupRowsMax, file, readFailed } = options;
  const memory = new RowMemory(processId);
  let group: Group | null = null;
  let last: Promise<unknown> = Promise.resolve();
  let steps = 0;

  /** One step at a time, because rows that are being moved to disk must not be taken. None of the steps rejects. */
  const inTurn = <T>(step: () => Promise<T>): Promise<T> => {
    steps += 1;
    const done = last.then(step).finally(() => (steps -= 1));
    last = done;
    return done;
  };
  /** This is nearly always true and avoids waiting. */
  const isInMemoryOnly = (): boolean => steps === 0 && (file === null || file.rows() === 0);

  const takeFromDisk = async (from: RowFile): Promise<SealedRows[] | null> => {
    try {
      return await from.first(groupRowsMax);
    } catch (error) {
      const before = from.rows();
      await from.drop(1);
      readFailed(error, before - from.rows());
      return null;
    }
  };

  const begin = (seals: SealedRows[] | null, isOnDisk: boolean): SealedRows[] | null => {
    if (seals === null || seals.length === 0) return null;
    const rows = seals.reduce((sum, { count }) => sum + count, 0);
    const bytes = seals.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
    group = { seals, rows, bytes, isOnDisk };
    return seals;
  };

  return {
    add: (entry: RequestLogEntry, position: RowPosition): void => memory.add(entry, position),
    /** Takes the next group, which stays counted until `done`. null if no row waits. Only one group can be taken at a time. */
    take: (): readonly SealedRows[] | null | Promise<readonly SealedRows[] | null> =>
      isInMemoryOnly()
        ? begin(memory.take(groupRowsMax), false)
        : inTurn(async () => {
            const isOnDisk = file !== null && file.rows() > 0;
            return begin(isOnDisk ? await takeFromDisk(file) : memory.take(groupRowsMax), isOnDisk);
          }),
    /** The group was written, or lost. */
    done(): void | Promise<void> {
      if (isInMemoryOnly()) return void (group = null);
      return inTurn(async () => {
        const ended = group;
        group = null;
        if (file === null || ended?.isOnDisk !== true) return;
        await file.drop(ended.seals.length);
        await file.touch();
      });
    },
    /** Moves rows from memory to disk while it has room, starting with those of the group being written. */
    keep: (): Promise<void> =>
      inTurn(async () => {
        if (file === null) return;
        if (group !== null && !group.isOnDisk) {
          // The file is empty at this point. Unless the whole group fits, its part is dropped again, because half a
          // group would be counted twice.
          const kept = await appendAll(file, group.seals);
          if (kept < group.seals.length) return await file.drop(kept);
          group.isOnDisk = true;
        }
        memory.drop(await appendAll(file, memory.seals()));
        await file.touch();
      }),
    /** Leaves the rows on disk to another process. */
    leave: () => inTurn(async () => await file?.close()),
    /** Whether the group being written is on disk. */
    isGroupOnDisk: () => group?.isOnDisk === true,
    /** Rows that belong to no group, in memory or on disk. */
    waitingRows: () => memory.rows + (file?.rows() ?? 0) - (group?.isOnDisk === true ? group.rows : 0),
    /** All rows that have not been written. */
    unwrittenRows: () => memory.rows + (file?.rows() ?? 0) + (group === null || group.isOnDisk ? 0 : group.rows),
    /** The number of unwritten rows that are on disk. */
    rowsOnDisk: () => file?.rows() ?? 0,
    /** The number of rows in memory, including the group. */
    memoryRows: () => memory.rows + (group?.rows ?? 0),
    /** Their memory, in bytes. */
    memoryBytes: () => memory.bytes + (group?.bytes ?? 0),
    /** The rows that are only in memory and in no group. */
    inMemory: () => memory.seals().flatMap(readAllRows),
  };
}

/** Appends the seals for which there is room. Returns their number. */
async function appendAll(file: RowFile, seals: readonly SealedRows[]): Promise<number> {
  for (let kept = 0; ;) {
    const added = await file.append(seals.slice(kept));
    kept += added;
    if (added === 0 || kept === seals.length) return kept;
  }
}
