import { existsSync } from 'node:fs';
import { checkResults } from '#libs/batches/results/check-results.ts';
import type { ResultsCheck } from '#libs/batches/results/compare-results.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createDatabase } from '#libs/database/pool.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createFiles } from '#libs/files/files.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError, readEnv } from '#libs/kernel/read-env.ts';
import { blobFolder } from '../../platform/config.ts';
import { CliConfig } from '../operate/config.ts';
import { withMigratedPool } from '../operate/migrated-pool.ts';

/**
 * Checks the files of a batch against its events. Throws ConfigurationError if there is no such batch, it has not ended,
 * the folder of the files is missing, or migrations are pending.
 */
export async function checkBatchResults(
  options: { connectionString: string; batchId: string; onProgress: (lines: number) => void },
  logger: Logger,
): Promise<ResultsCheck> {
  const { connectionString, batchId, onProgress } = options;
  const folder = blobFolder(readEnv(CliConfig));
  if (!existsSync(folder)) {
    throw new ConfigurationError(`There are no files in ${folder}: set SLUICE_BLOBS or SLUICE_DATA_DIR.`);
  }
  return await withMigratedPool({ connectionString, applicationName: 'sluice-check-results' }, logger, async (pool) => {
    const db = createDatabase(pool);
    const blobs = await createDiskBlobStore({ folder });
    const files = createFiles({ db, eventLog: createEventLog(db), blobs });
    const readFile = async (workspaceId: string, fileId: string) => {
      const file = await files.find(workspaceId, fileId);
      if (!file) throw new ConfigurationError(`The batch's file ${fileId} does not exist.`);
      return await blobs.read(file.blob);
    };
    const check = await checkResults({ db, readFile }, batchId, onProgress);
    if (check) return check;
    throw new ConfigurationError(`There is no batch ${batchId} that has ended.`);
  });
}

/** The result as text, one line each. */
export function describeResultsCheck({ batchId, lines, settles, violations }: ResultsCheck): string[] {
  const summary = `${batchId}: ${lines} lines in its files, ${settles} events that settled lines`;
  if (violations.length === 0) return [summary, 'equal: the files are what the events say'];
  return [
    summary,
    ...violations.map((violation) => `  ${violation}`),
    'different: the files are not what the events say',
  ];
}

/** The result as one line of JSON. */
export function resultsCheckToJson({ batchId, lines, settles, violations }: ResultsCheck): string {
  return JSON.stringify({ equal: violations.length === 0, batch_id: batchId, lines, settles, violations });
}
