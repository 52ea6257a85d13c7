import type { Kysely } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import type { Files } from '#libs/files/files.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { compareResults, violationsMax, type ResultsCheck, type SettledEvent } from './compare-results.ts';
import { compareStored } from './compare-stored.ts';

type Deps = { db: Kysely<Database>; files: Pick<Files, 'find'>; blobs: Pick<BlobStore, 'read' | 'readRange'> };

const batchesAtOnce = 100;

/**
 * Compares the results of every batch with its events, in the order of their IDs: those that are still stored one by one
 * (`compareStored`), and the files of a batch that has ended (`compareResults`) unless one was deleted or has expired. Leaves
 * out batches that have neither. A missing blob is a violation.
 */
export async function* checkResults({ db, files, blobs }: Deps): AsyncGenerator<ResultsCheck> {
  for (let after = ''; ;) {
    const batches = await db
      .selectFrom('batch')
      .select(['id', 'workspace_id', 'version', 'status', 'created_at', 'total', 'output_file_id', 'error_file_id'])
      .where('status', 'in', ['in_progress', 'cancelling', 'finalizing', 'completed', 'cancelled', 'expired'])
      .where('id', '>', after)
      .orderBy('id')
      .limit(batchesAtOnce)
      .execute();
    if (batches.length === 0) return;
    for (const batch of batches) {
      after = batch.id;
      const check: ResultsCheck = { batchId: batch.id, lines: 0, settles: 0, violations: [] };
      for await (const violation of compareStored({ db, blobs }, batch, settledEvents(db, batch.id)))
        if (check.violations.length < violationsMax) check.violations.push(violation);
      const ids = [batch.output_file_id, batch.error_file_id].filter((id) => id !== null);
      const found = await Promise.all(ids.map((id) => files.find(batch.workspace_id, id)));
      const isReadable = found.length > 0 && found.every((file) => file?.deleted_at === null);
      if (!isReadable) {
        if (check.violations.length > 0) yield check;
        continue;
      }
      const readFile = (fileId: string) => blobs.read(found.find((file) => file?.id === fileId)?.blob ?? '');
      try {
        const { lines, settles, violations } = await compareResults({
          batch,
          events: settledEvents(db, batch.id),
          readFile,
        });
        yield { ...check, lines, settles, violations: [...check.violations, ...violations] };
      } catch (error) {
        if (!(error instanceof GatewayError && error.code === 'blob_not_found')) throw error;
        yield { ...check, violations: [...check.violations, 'a result file has lost its content'] };
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
