import { constants, mkdirSync } from 'node:fs';
import { open, unlink, type FileHandle } from 'node:fs/promises';
import path from 'node:path';
import { crc32 } from 'node:zlib';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { unsealRows, type SealedRows } from './sealed-rows.ts';

/**
 * Rows that wait on disk, oldest first. A frame of the file is a CRC-32 and the two CopyData messages of a seal, which
 * contain their own length, so that parts that a crash cut off or left as zeros are detected.
 */
export type RowFile = {
  /** Number of rows that were appended and not dropped. */
  rows(): number;
  /**
   * Appends some of these in order, and resolves with their number when they are on disk: 0 if there is no room. Never rejects:
   * a disk error is logged, once until a write succeeds again, and counts as no room.
   */
  append(seals: readonly SealedRows[]): Promise<number>;
  /** Reads the oldest seals: up to `rowsMax` rows, but at least one seal. Rejects if the disk cannot be read. */
  first(rowsMax: number): Promise<SealedRows[]>;
  /** Forgets the oldest `seals`. The file is removed with the last one. */
  drop(seals: number): Promise<void>;
  /** Shows other processes that this one is still using the file (recover-rows.ts). */
  touch(): Promise<void>;
  /** Leaves the content of the file to another process. */
  close(): Promise<void>;
};

/**
 * A folder for rows that wait, up to `bytesMax`. It is created, and processes that write to the same database can share
 * it. `isAvailable`: false while its volume is not mounted. Nothing is written then.
 */
export type RowDisk = { folder: string; bytesMax: number; isAvailable?: () => Promise<boolean> };

type Frame = { at: number; sizeBytes: number; rows: number };

export const rowFileSuffix = '.rows';
export const frameHeadBytes = 4;

/** The maximum bytes of one write. */
const pieceBytes = 4_194_304;

/** The file of one process. It is only opened when rows are appended. */
export function createRowFile(options: RowDisk & { processId: string; logger: Logger }): RowFile {
  const { folder, processId, bytesMax, isAvailable, logger } = options;
  const file = path.join(folder, `${processId}${rowFileSuffix}`);
  let handle: FileHandle | undefined;
  let frames: Frame[] = [];
  let rows = 0;
  let endAt = 0;
  let isRefused = false;

  const openFile = async (): Promise<FileHandle> => {
    if ((await isAvailable?.()) === false) throw new Error(`the volume of ${folder} is unavailable`);
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const opened = await open(file, constants.O_RDWR | constants.O_CREAT | constants.O_TRUNC, 0o600);
    // The name has to survive a power failure too.
    const parent = await open(folder, 'r');
    await parent.sync().finally(() => parent.close());
    return opened;
  };

  /** The seals for which there is room, as frames with their bytes. */
  const fit = (seals: readonly SealedRows[]): { added: Frame[]; pieces: Buffer[] } => {
    const added: Frame[] = [];
    const pieces: Buffer[] = [];
    let at = endAt;
    for (const { copyData, count } of seals) {
      // Rows that cannot be written as text wait in memory and are cleaned when they are written to the database.
      if (copyData === null || at + frameHeadBytes + copyData.length > bytesMax || at - endAt >= pieceBytes) break;
      const head = Buffer.allocUnsafe(frameHeadBytes);
      head.writeUInt32BE(crc32(copyData));
      pieces.push(head, copyData);
      added.push({ at, sizeBytes: frameHeadBytes + copyData.length, rows: count });
      at += frameHeadBytes + copyData.length;
    }
    return { added, pieces };
  };

  return {
    rows: () => rows,
    async append(seals) {
      const { added, pieces } = fit(seals);
      if (added.length === 0) return 0;
      try {
        handle ??= await openFile();
        const bytes = Buffer.concat(pieces);
        for (let written = 0; written < bytes.length;) {
          written += (await handle.write(bytes, written, bytes.length - written, endAt + written)).bytesWritten;
        }
        await handle.datasync();
        endAt += bytes.length;
      } catch (error) {
        if (!isRefused) logger.error({ err: error }, 'request-log rows cannot be buffered on the disk');
        isRefused = true;
        return 0;
      }
      isRefused = false;
      frames.push(...added);
      for (const frame of added) rows += frame.rows;
      return added.length;
    },
    async first(rowsMax) {
      let count = 0;
      const end = frames.findIndex((frame) => (count += frame.rows) > rowsMax);
      const taken = frames.slice(0, end === -1 ? frames.length : Math.max(1, end));
      const [head] = taken;
      if (head === undefined || handle === undefined) return [];
      const bytes = Buffer.allocUnsafeSlow(taken.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0));
      if (!(await fill(bytes, handle, head.at)))
        throw new Error(`the file of buffered rows is shorter than the data written to it: ${file}`);
      return taken.map(({ at, sizeBytes }) => {
        const start = at - head.at;
        return unsealRows(bytes.subarray(start + frameHeadBytes, start + sizeBytes));
      });
    },
    async drop(seals) {
      for (const frame of frames.slice(0, seals)) rows -= frame.rows;
      frames = frames.slice(seals);
      if (frames.length > 0) return;
      const empty = handle;
      handle = undefined;
      endAt = 0;
      await empty?.close();
      await unlink(file).catch(() => {}); // Another process may have removed it first (recover-rows.ts).
    },
    async touch() {
      const now = new Date();
      await handle?.utimes(now, now).catch(() => {});
    },
    async close() {
      await handle?.close();
      handle = undefined;
    },
  };
}

/** Reads as many bytes as the buffer has. Returns false if the file ends before. */
async function fill(bytes: Buffer, handle: FileHandle, at: number): Promise<boolean> {
  for (let filled = 0; filled < bytes.length;) {
    const { bytesRead } = await handle.read(bytes, filled, bytes.length - filled, at + filled);
    if (bytesRead === 0) return false;
    filled += bytesRead;
  }
  return true;
}
