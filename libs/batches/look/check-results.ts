import type { Kysely } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import type { Files } from '#libs/files/files.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { compareResults, type ResultsCheck, type SettledEvent } from './compare-results.ts';

type Deps = { db: Kysely<Database>; files: Pick<Files, 'find'>; blobs: Pick<BlobStore, 'read'> };

const batchesAtOnce = 100;

/**
 * Compares the result files of every batch that has ended with its events (`compareResults`), in the order of their IDs.
 * Leaves out batches without files and those with a deleted or expired file. A missing blob is a violation.
 */
export async function* checkResults({ db, files, blobs }: Deps): AsyncGenerator<ResultsCheck> {
  for (let after = ''; ;) {
    const batches = await db
      .selectFrom('batch')
      .select(['id', 'workspace_id', 'total', 'output_file_id', 'error_file_id'])
      .where('status', 'in', ['completed', 'cancelled', 'expired'])
      .where('id', '>', after)
      .orderBy('id')
      .limit(batchesAtOnce)
      .execute();
    if (batches.length === 0) return;
    for (const batch of batches) {
      after = batch.id;
      const ids = [batch.output_file_id, batch.error_file_id].filter((id) => id !== null);
      const found = await Promise.all(ids.map((id) => files.find(batch.workspace_id, id)));
      const isReadable = found.length > 0 && found.every((file) => file?.deleted_at === null);
      if (!isReadable) continue;
      const readFile = (fileId: string) => blobs.read(found.find((file) => file?.id === fileId)?.blob ?? '');
      try {
        yield await compareResults({ batch, events: settledEvents(db, batch.id), readFile });
      } catch (error) {
        if (!(error instanceof GatewayError && error.code === 'blob_not_found')) throw error;
        yield { batchId: batch.id, lines: 0, settles: 0, violations: ['a result file has lost its content'] };
      }
    }
  }
}

async function* settledEvents(db: Kysely<Database>, batchId: string): AsyncGenerator<SettledEvent> {
  for (let after = 0; ;) {
    const events = await readStream(db, batchId, after);
    if (events.length === 0) return;
    for (const { streamVersion, type, data } of events) {
      after = streamVersion;
      if (type === 'batch.lines_settled') yield { version: streamVersion, data: data as SettledEvent['data'] };
    }
  }
}
