import type { ActivityTable } from '#libs/database/schema.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';
import type { Subscriber } from '#libs/event-log/subscriber.ts';

/** The read model of GET /v1/audit-logs, one row per event: who changed what, when and from where. */
export const activitySubscriber: Subscriber = {
  name: 'activity',
  tables: ['activity'],
  async apply(tx, events) {
    const rows = events.map(toActivity).filter((row) => row !== null);
    if (rows.length > 0) await tx.insertInto('activity').values(rows).execute();
  },
};

/** The events of refused requests, with the statuses that were answered. */
const refusals: Readonly<Record<string, number>> = {
  'api_key.request_refused': 403,
  'user.request_refused': 403,
  'session.refused': 401,
};

/** The part of a refused request's event that is shown (libs/people/refusal-log.ts). */
type Refusal = { method: string; route: string; addresses: string[] };

/**
 * Returns the row of an event; null for events that a worker causes without a request, such as settling lines. A large
 * batch has thousands of such events.
 */
function toActivity(event: PositionedEvent): ActivityTable | null {
  const { type, eventId, streamId, recordedAt, metadata } = event;
  const { actor, request_id, trace_id, address, method, path } = metadata;
  if (actor.type === 'system' && actor.id === 'worker') return null;
  const refusedStatus = refusals[type];
  const refusal = refusedStatus === undefined ? null : (event.data as Refusal);
  const [noun = '', verb = ''] = type.split('.');
  return {
    id: eventId,
    workspace_id: changedWorkspace(event),
    recorded_at: recordedAt,
    action: verb,
    resource_type: noun,
    resource_id: streamId,
    actor_type: actor.type,
    actor_id: actor.id,
    principal_id: actor.principal?.id ?? null,
    request_id: request_id ?? null,
    trace_id: trace_id ?? null,
    address: address ?? refusal?.addresses[0] ?? null,
    method: method ?? refusal?.method ?? null,
    uri: path ?? refusal?.route ?? null,
    // Only a successful change has an event, so its request was answered with 200.
    status: refusedStatus ?? (method === undefined ? null : 200),
  };
}

/**
 * A change of a user's membership belongs to the workspace that it names, everything else to the workspace that stores
 * it.
 */
function changedWorkspace({ type, workspaceId, data }: PositionedEvent): string {
  return type.startsWith('user.workspace_') ? (data as { workspace_id: string }).workspace_id : workspaceId;
}
