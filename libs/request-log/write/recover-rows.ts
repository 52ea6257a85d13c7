import { open, readdir, stat, unlink, type FileHandle } from 'node:fs/promises';
import path from 'node:path';
import { crc32 } from 'node:zlib';
import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createGroupWriter } from './group-writer.ts';
import { createInsertRows } from './insert-rows.ts';
import { frameHeadBytes, rowFileSuffix } from './row-file.ts';
import { messageBytes, messageHeadBytes, unsealRows, type SealedRows } from './sealed-rows.ts';

/** A process with rows on disk touches its file several times a second. */
const abandonedAfterMs = 60_000;
/** The first wait for an unavailable database. */
const retryDelayMs = 1_000;
/** No message of a seal is larger: 64 rows with the maximum metadata of a call. */
const messageBytesMax = 16 * 1_048_576;

const fileName = /^([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\.rows$/;

/**
 * Writes the rows that processes left on disk when they were killed, or stopped without a database, and removes their
 * files. Several processes can do this concurrently: rows that are already in the database are skipped. Rejects if the
 * folder is not readable; a missing folder has no files. After `givenUp` it leaves the rest.
 */
export async function recoverRows(options: {
  folder: string;
  /** The process whose own file is skipped. */
  processId: string;
  db: Kysely<Database>;
  ensurePartition: (day: string) => Promise<void>;
  /** In epoch milliseconds. */
  nowMs: number;
  logger: Logger;
  givenUp: AbortSignal;
}): Promise<void> {
  const { folder, db, ensurePartition, nowMs, logger, givenUp } = options;
  for (const name of await namesIn(folder)) {
    const processId = fileName.exec(name)?.[1];
    const file = path.join(folder, name);
    if (processId === undefined || processId === options.processId || !(await isAbandoned(file, nowMs))) continue;
    const insertRows = createInsertRows(db, processId);
    const writer = createGroupWriter({
      // Some can already be in the database: the process could have been killed after writing them and before removing them
      // here.
      copyRows: async (group) => {
        for (const seals of group) await insertRows(seals.content());
      },
      insertRows,
      ensurePartition,
      isKept: () => true,
      logger,
      retryDelayMs,
    });
    let rows = 0;
    let lostRows = 0;
    for await (const seals of sealsIn(file)) {
      lostRows += await writer.write([seals], false, givenUp);
      if (givenUp.aborted) return;
      rows += seals.count;
    }
    await unlink(file).catch(() => {}); // Another process has removed it already.
    logger.info({ process_id: processId, rows, lost_rows: lostRows }, 'wrote request-log rows of a process that ended');
  }
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return (await readdir(folder)).filter((name) => name.endsWith(rowFileSuffix));
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
}

async function isAbandoned(file: string, nowMs: number): Promise<boolean> {
  try {
    return (await stat(file)).mtimeMs < nowMs - abandonedAfterMs;
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}

/** The sealed groups of a file, up to the first incomplete one, where a crash ended the file. */
async function* sealsIn(file: string): AsyncGenerator<SealedRows> {
  const handle = await open(file, 'r').catch((error: unknown) => {
    if (isMissing(error)) return null;
    throw error;
  });
  if (handle === null) return;
  try {
    for (let at = 0; ;) {
      const crc = await readExactly(handle, at, frameHeadBytes);
      const rows = await readMessage(handle, at + frameHeadBytes);
      if (crc === null || rows === null) return;
      const packs = await readMessage(handle, at + frameHeadBytes + rows.length);
      if (packs === null) return;
      const seal = Buffer.concat([rows, packs]);
      if (crc32(seal) !== crc.readUInt32BE(0)) return;
      yield unsealRows(seal);
      at += frameHeadBytes + seal.length;
    }
  } finally {
    await handle.close();
  }
}

/** A CopyData message; null if the file ends before it does, or has something else there. */
async function readMessage(handle: FileHandle, at: number): Promise<Buffer | null> {
  const head = await readExactly(handle, at, messageHeadBytes);
  if (head === null) return null;
  const sizeBytes = messageBytes(head);
  if (sizeBytes < messageHeadBytes || sizeBytes > messageBytesMax) return null;
  return await readExactly(handle, at, sizeBytes);
}

/** null if the file ends before that. */
async function readExactly(handle: FileHandle, at: number, sizeBytes: number): Promise<Buffer | null> {
  const bytes = Buffer.allocUnsafe(sizeBytes);
  for (let filled = 0; filled < sizeBytes;) {
    const { bytesRead } = await handle.read(bytes, filled, sizeBytes - filled, at + filled);
    if (bytesRead === 0) return null;
    filled += bytesRead;
  }
  return bytes;
}

const isMissing = (error: unknown): boolean => error instanceof Error && 'code' in error && error.code === 'ENOENT';
