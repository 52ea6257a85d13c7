import type { ActivityTable } from '#libs/database/schema.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';
import type { Subscriber } from '#libs/event-log/subscriber.ts';

/** Who changed what, when and from where: the read model of GET /v1/audit-logs, one row for each event that it has. */
export const activitySubscriber: Subscriber = {
  name: 'activity',
  tables: ['activity'],
  async apply(tx, events) {
    const rows = events.map(toActivity).filter((row) => row !== null);
    if (rows.length > 0) await tx.insertInto('activity').values(rows).execute();
  },
};

/** What an event of a refused request says of it (libs/access/refusal-log.ts). */
type Refusal = { method: string; route: string; addresses: string[] };

/**
 * The row of an event; null for what a worker does by itself, such as settling lines: nobody asked for it, and of a
 * large batch it is thousands of events.
 */
function toActivity(event: PositionedEvent): ActivityTable | null {
  const { type, eventId, workspaceId, streamId, recordedAt, metadata } = event;
  const { actor, request_id, trace_id, address, method, path } = metadata;
  if (actor.type === 'system' && actor.id === 'worker') return null;
  const refusal = type === 'api_key.request_refused' ? (event.data as Refusal) : null;
  const [noun = '', verb = ''] = type.split('.');
  return {
    id: eventId,
    workspace_id: workspaceId,
    recorded_at: recordedAt,
    action: verb,
    resource_type: noun,
    resource_id: streamId,
    actor_type: actor.type,
    actor_id: actor.id,
    request_id: request_id ?? null,
    trace_id: trace_id ?? null,
    address: address ?? refusal?.addresses[0] ?? null,
    method: method ?? refusal?.method ?? null,
    uri: path ?? refusal?.route ?? null,
    // Only a change that was made has an event; one of a request was answered with 200.
    status: refusal ? 403 : method === undefined ? null : 200,
  };
}
