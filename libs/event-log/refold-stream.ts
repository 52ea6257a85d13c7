import type { Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { upsertRow } from './event-log.ts';
import { foldEvent, getEventNouns, type AnyInlineModel } from './inline-model.ts';
import { replayStream, type ReplayedEvent } from './replay-stream.ts';
import { upcast } from './upcast.ts';

/** Folds a stream again, and writes all of its rows. The stream must be locked. */
export async function refoldStream(
  tx: Transaction<Database>,
  models: readonly AnyInlineModel[],
  streamId: string,
): Promise<void> {
  let last: ReplayedEvent | undefined;
  for await (const replayed of replayStream(tx, models, streamId, () => Promise.resolve())) {
    last = replayed;
    const { event } = replayed;
    const noun = event.type.slice(0, event.type.indexOf('.'));
    for (const model of models.filter((each) => each.perEvent && getEventNouns(each).includes(noun))) {
      if (model.perEvent?.rowId(upcast(model.upcasts, event) as never) === null) continue;
      await upsertRow(model, foldEvent(model, undefined, event as never)).execute(tx);
    }
  }
  if (last !== undefined) await upsertRow(last.model, last.row).execute(tx);
}
