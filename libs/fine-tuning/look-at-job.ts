import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { FineTuningView, RecordedCheckpoint, RecordedFineTuningEvent } from './fine-tuning-job.ts';
import type { FineTuningJobRow } from './fine-tuning-job-model.ts';
import { findRecorded } from './fine-tuning-records.ts';
import { readProviderCheckpoint, readProviderEvent, toView } from './read-provider-job.ts';
import type { TuningProvider } from './tuning-provider.ts';

type Deps = { db: Kysely<Database>; logger: Logger };

/** What is new at the provider. `view` is null where not all events before it could be read: they come first. */
export type Look = {
  view: FineTuningView | null;
  events: RecordedFineTuningEvent[];
  checkpoints: RecordedCheckpoint[];
};

/** Records that one look holds; there may be more, and they are left to the next one. */
const recordsMax = 5_000;
const recordCharsMax = 8_388_608;
/**
 * Looks at a job at its provider. The state first: when it is the last one, the lists that are read after it are whole.
 * Throws GatewayError, `not_found` when the provider has no such job.
 */
export async function lookAt(
  deps: Deps,
  row: FineTuningJobRow,
  providerJobId: string,
  provider: TuningProvider,
): Promise<Look> {
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
 * The records that the log lacks, oldest first. Pages come newest first and are read until one has nothing new: what was
 * appended before was appended oldest first, so nothing older is missing. Of more than are held the newest are let go
 * (`whole` is false), and found again by the next look.
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
    // A server of the dialect may keep no such list; its jobs are followed all the same.
    if (!(error instanceof GatewayError) || error.kind !== 'not_found') throw error;
    logger.debug({ fine_tuning_job_id: jobId, kind }, 'the provider keeps no such list');
  }
  const items = [...found.values()].map(({ item }) => item).toReversed();
  return { items: items.toSorted((a, b) => a.created_at - b.created_at), whole };
}

/** Our ids in the place of the provider's, in texts that people read. */
function createIdTranslation(row: FineTuningJobRow): (text: string) => string {
  const pairs = [
    [row.provider_job_id, row.id],
    [row.provider_training_file_id, row.training_file_id],
    [row.provider_validation_file_id, row.validation_file_id],
  ] as const;
  return (text) =>
    pairs.reduce((read, [theirs, ours]) => (theirs && ours ? read.replaceAll(theirs, ours) : read), text);
}
