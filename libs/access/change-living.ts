import type { EventMetadata, NewEvent } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { InlineModel, StreamRow } from '#libs/event-log/inline-model.ts';
import { announceAccessChange } from './access-change.ts';
import type { AccessSnapshot } from './access-snapshot.ts';

/**
 * Makes what changes a living virtual key: it runs `work` on the locked stream, announces a change to every
 * process, and lets this one see it before the caller is answered. `get` finds the row and throws what `missing` makes,
 * which is also thrown for one that was deleted meanwhile.
 */
export function createChangeLiving<Row extends StreamRow & { deleted_at: Date | null }, Event extends NewEvent>(deps: {
  eventLog: EventLog;
  snapshot: Pick<AccessSnapshot, 'catchUp'>;
  model: InlineModel<Row, Event>;
  get: (workspaceId: string, name: string) => Promise<Row>;
  missing: (name: string) => Error;
}) {
  const { eventLog, snapshot, model, get, missing } = deps;
  return async (
    workspaceId: string,
    name: string,
    metadata: EventMetadata,
    work: (unit: UnitOfWork, row: Row) => Promise<Row>,
  ): Promise<Row> => {
    const { id } = await get(workspaceId, name);
    const changed = await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
      const row = await unit.load(model, id);
      if (!row || row.deleted_at) throw missing(name);
      const next = await work(unit, row);
      if (next.version !== row.version) await announceAccessChange(unit);
      return next;
    });
    await snapshot.catchUp();
    return changed;
  };
}
