import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { isTerminal } from '../batch.ts';
import { compareResults, type ResultsCheck, type SettledEvent } from './compare-results.ts';

type ReadFile = (workspaceId: string, fileId: string) => Promise<AsyncIterable<Buffer>>;

/** Compares a batch with its events, all read from here (`compareResults`). Returns null for one that does not exist or has not ended. */
export async function checkResults(
  deps: { db: Kysely<Database>; readFile: ReadFile },
  batchId: string,
  onProgress: (lines: number) => void = () => {},
): Promise<ResultsCheck | null> {
  const batch = await deps.db.selectFrom('batch').selectAll().where('id', '=', batchId).executeTakeFirst();
  if (!batch || !isTerminal(batch.status)) return null;
  const readFile = (fileId: string): Promise<AsyncIterable<Buffer>> => deps.readFile(batch.workspace_id, fileId);
  return await compareResults({ batch, events: settledEvents(deps.db, batchId), readFile }, onProgress);
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
