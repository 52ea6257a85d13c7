import type { Kysely } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { splitChunk, type RequestLine } from '#libs/validation/json-lines.ts';
import type { BatchRow } from '../batch/batch-model.ts';

export type LineDeps = {
  db: Kysely<Database>;
  blobs: Pick<BlobStore, 'readRange'>;
  /** The blob of the input file; null when it was deleted. */
  inputBlob: (batch: BatchRow) => Promise<string | null>;
};

/** Consecutive lines of a batch; `end` is not among them. */
export type Window = { first: number; end: number };

/** The maximum that is read from the input file for one window. A larger chunk is read whole. */
const scannedBytesMax = 16 * 1_048_576;

/**
 * Calls `onRequest` for each request of a window, in order, from the byte ranges of its chunks. Reads one chunk after
 * the other, so parts of a request that are needed later must be copied. Returns the end of the lines it has read,
 * which is before the end of the window if the lines are large. Finds no requests if the input file was deleted.
 */
export async function scanRequests(
  deps: LineDeps,
  batch: BatchRow,
  { first, end }: Window,
  onRequest: (request: RequestLine) => unknown,
): Promise<number> {
  const blob = await deps.inputBlob(batch);
  if (blob === null) return end;
  const chunks = await deps.db
    .selectFrom('batch_chunk')
    .select(['byte_offset', 'byte_length', 'range_first_line'])
    .distinct()
    .where('batch_id', '=', batch.id)
    .where('first_line', '<', end)
    .where((of) => of('first_line', '+', of.ref('line_count')), '>', first)
    .orderBy('range_first_line')
    .execute();
  let bytes = 0;
  for (const chunk of chunks) {
    if (bytes > 0 && bytes + chunk.byte_length > scannedBytesMax) return chunk.range_first_line;
    bytes += chunk.byte_length;
    const range = await deps.blobs.readRange(blob, chunk.byte_offset, chunk.byte_length);
    for (const request of splitChunk(range, chunk.range_first_line))
      if (request.line >= first && request.line < end) await onRequest(request);
  }
  return end;
}
