import { existsSync } from 'node:fs';
import { open, readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import type { Kysely } from 'kysely';
import { findBatchesReading } from '#libs/batches/batch/open-batches.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { checkBlobs, type BlobFinding } from '#libs/files/check-blobs.ts';
import { ConfigurationError, readEnv } from '#libs/kernel/read-env.ts';
import { blobFolder, blobLocation, openBlobs, rowFolder } from '../../platform/blobs.ts';
import { CliConfig } from '../operate/config.ts';
import { toJson } from '../terminal/output.ts';

type Count = { blobs: number; bytes: number };

export type BlobReport = {
  /** The folder, or the URL of the bucket. */
  location: string;
  /** The number of compared rows and blobs. */
  checked: number;
  missing: Count;
  wrongSize: Count;
  surplus: Count;
  /** The first blobs that are missing or have the wrong size. */
  first: BlobFinding[];
  /** Open batches whose input is missing or incomplete; `first` has the IDs of some of them. */
  stuckBatches: { batches: number; first: string[] };
  /** Rows of the request log that ended processes left in the folder; the next process writes them. */
  rowsOnDisk: { files: number; bytes: number };
};

const firstMax = 20;
const fileIdsAtOnce = 500;

/**
 * The blob store of the environment, if it belongs to the database. With `adoptBlobs` and `mayChange`, another one is
 * assigned to the database. Throws ConfigurationError if the folder is missing, or if it belongs to another database and
 * `adoptBlobs` is false.
 */
export async function openBlobStore(
  db: Kysely<Database>,
  { adoptBlobs, mayChange }: { adoptBlobs: boolean; mayChange: boolean },
): Promise<BlobStore> {
  const config = readEnv(CliConfig);
  const folder = blobFolder(config);
  if (folder !== null && !existsSync(folder)) {
    throw new ConfigurationError(
      `There are no blobs in ${folder}. Restore them there, or set SLUICE_BLOBS or SLUICE_DATA_DIR. If they are lost, ` +
        'create the folder and add --adopt-blobs.',
    );
  }
  const blobs = await openBlobs(config);
  const found = await blobs.findId();
  const known = await db
    .selectFrom('installation')
    .select('value')
    .where('name', '=', 'blob_store_id')
    .executeTakeFirst();
  if (known === undefined || known.value === found) return blobs;
  if (!adoptBlobs) {
    throw new ConfigurationError(
      `The blobs in ${blobLocation(config)} (${found ?? 'an empty store'}) do not belong to this database, which uses ${known.value}. Restore the blobs of ` +
        'the same backup. If those are lost, add --adopt-blobs, which makes these the blobs of the database.',
    );
  }
  if (mayChange) {
    const value = await blobs.storeId();
    await db.updateTable('installation').set({ value }).where('name', '=', 'blob_store_id').execute();
  }
  return blobs;
}

/**
 * Compares blobs and rows in both directions. Memory use does not grow with their number: all differences are written to
 * `listFile`, if given, and the report has their number and the first ones. Throws the error of a file that cannot be
 * written.
 */
export async function inspectBlobs(
  { db, blobs }: { db: Kysely<Database>; blobs: BlobStore },
  { listFile, onProgress }: { listFile: string | null; onProgress: (text: string) => void },
): Promise<BlobReport> {
  const config = readEnv(CliConfig);
  const counts = { missing: none(), wrong_size: none(), surplus: none() };
  const first: BlobFinding[] = [];
  const stuckBatches: BlobReport['stuckBatches'] = { batches: 0, first: [] };
  let unreadable: string[] = [];
  const findStuck = async (): Promise<void> => {
    const found = await findBatchesReading(db, unreadable);
    stuckBatches.batches += found.length;
    stuckBatches.first.push(...found.slice(0, firstMax - stuckBatches.first.length));
    unreadable = [];
  };
  let checked = 0;
  const list = listFile === null ? null : await open(listFile, 'w', 0o600);
  try {
    for await (const finding of checkBlobs({ db, blobs }, (count) => onProgress(`blobs: ${(checked = count)}`))) {
      const count = counts[finding.problem];
      count.blobs += 1;
      count.bytes += finding.sizeBytes;
      await list?.write(`${toJson(finding)}\n`);
      if (finding.owner === null) continue;
      if (first.length < firstMax) first.push(finding);
      if (finding.owner.type === 'file') unreadable.push(finding.owner.id);
      if (unreadable.length === fileIdsAtOnce) await findStuck();
    }
  } finally {
    await list?.close();
  }
  if (unreadable.length > 0) await findStuck();
  const { missing, wrong_size: wrongSize, surplus } = counts;
  const rowsOnDisk = await countRowFiles(rowFolder(config));
  return { location: blobLocation(config), checked, missing, wrongSize, surplus, first, stuckBatches, rowsOnDisk };
}

const none = (): Count => ({ blobs: 0, bytes: 0 });

async function countRowFiles(folder: string): Promise<BlobReport['rowsOnDisk']> {
  const names = existsSync(folder) ? await readdir(folder) : [];
  const sizes = await Promise.all(
    names.filter((name) => name.endsWith('.rows')).map(async (name) => (await stat(path.join(folder, name))).size),
  );
  const written = sizes.filter((size) => size > 0);
  return { files: written.length, bytes: written.reduce((sum, size) => sum + size, 0) };
}
