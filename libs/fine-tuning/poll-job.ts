import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { FineTuningView, RecordedCheckpoint, RecordedFineTuningEvent } from './fine-tuning-job.ts';
import type { FineTuningJobRow } from './fine-tuning-job-model.ts';
import { findRecorded } from './fine-tuning-records.ts';
import { readProviderCheckpoint, readProviderEvent, toView } from './read-provider-job.ts';
import type { TuningProvider } from './tuning-provider.ts';

type Deps = { db: Kysely<Database>; logger: Logger };

/** The news from the provider. `view` is null if not all earlier events could be read, because those come first. */
export type Poll = {
  view: FineTuningView | null;
  events: RecordedFineTuningEvent[];
  checkpoints: RecordedCheckpoint[];
};

/** The maximum of records from one poll. The next poll finds the rest. */
const recordsMax = 5_000;
const recordCharsMax = 8_388_608;

/**
 * Reads a job at its provider. The state is read first: if it is terminal, the lists read after it are complete. Throws
 * GatewayError, `not_found` when the provider has no such job.
 */
export async function pollJob(
  deps: Deps,
  row: FineTuningJobRow,
  providerJobId: string,
  provider: TuningProvider,
): Promise<Poll> {
  const view = toView(await provider.retrieveJob(providerJobId), row.status);
  const toOurs = createIdTranslation(row);
  const events = await collectNew(deps, row.id, 'event', provider.pagesOf(providerJobId, 'events'), (item) =>
    readProviderEvent(row.id, item, toOurs),
  );
  const checkpoints = await collectNew(
    deps,
    row.id,
    'checkpoint',
    provider.pagesOf(providerJobId, 'checkpoints'),
    (item) => readProviderCheckpoint(row.id, item),
  );
  const error = view.error && { ...view.error, message: toOurs(view.error.message) };
  const whole = events.whole && checkpoints.whole;
  return {
    view: whole ? { ...view, error } : null,
    events: events.items,
    checkpoints: checkpoints.items,
  };
}

/**
 * The records that are not in the log yet, oldest first. Pages come newest first and are read until one contains no new
 * record: records are appended oldest first, so no older one can be missing. If there are too many, the newest are
 * dropped (`whole` is false) and found again by the next poll.
 */
async function collectNew<Item extends { id: string; created_at: number }>(
  { db, logger }: Deps,
  jobId: string,
  kind: 'event' | 'checkpoint',
  pages: AsyncIterable<unknown[]>,
  read: (item: unknown) => Item | null,
): Promise<{ items: Item[]; whole: boolean }> {
  const found = new Map<string, { item: Item; chars: number }>();
  let chars = 0;
  let whole = true;
  try {
    for await (const page of pages) {
      const items = page.map(read).filter((item) => item !== null);
      const known = await findRecorded(
        db,
        jobId,
        kind,
        items.map(({ id }) => id),
      );
      const fresh = items.filter(({ id }) => !known.has(id) && !found.has(id));
      if (fresh.length === 0) break;
      for (const item of fresh) {
        const size = JSON.stringify(item).length;
        found.set(item.id, { item, chars: size });
        chars += size;
      }
      for (const [id, newest] of found) {
        if (found.size <= recordsMax && chars <= recordCharsMax) break;
        found.delete(id);
        chars -= newest.chars;
        whole = false;
      }
    }
  } catch (error) {
    // Some OpenAI-compatible servers have no such list. Their jobs are followed without it.
    if (!(error instanceof GatewayError) || error.kind !== 'not_found') throw error;
    logger.debug({ fine_tuning_job_id: jobId, kind }, 'the provider does not have this list');
  }
  const items = [...found.values()].map(({ item }) => item).toReversed();
  return { items: items.toSorted((a, b) => a.created_at - b.created_at), whole };
}

/** Replaces the provider's IDs with ours in texts for users. */
function createIdTranslation(row: FineTuningJobRow): (text: string) => string {
  const pairs = [
    [row.provider_job_id, row.id],
    [row.provider_training_file_id, row.training_file_id],
    [row.provider_validation_file_id, row.validation_file_id],
  ] as const;
  return (text) =>
    pairs.reduce((read, [theirs, ours]) => (theirs && ours ? read.replaceAll(theirs, ours) : read), text);
}
