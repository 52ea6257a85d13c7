import type { EventMetadata } from './event.ts';
import type { StreamRow } from './inline-model.ts';

/**
 * The metadata of events by which a part of the system continues the work on a record: the previous event of the record is
 * their cause. `before`: the row of the record.
 */
export const continuedBy =
  (part: string) =>
  (before: StreamRow | undefined): EventMetadata => ({
    actor: { type: 'system', id: part },
    ...(typeof before?.last_event_id === 'string'
      ? { causation_id: before.last_event_id, correlation_id: before.id }
      : {}),
  });

export const byWorker = continuedBy('worker');
