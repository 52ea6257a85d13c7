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

/** The events that count requests (libs/people/facts/fact-log.ts), with the status of events that do not have it. */
const counted: Readonly<Record<string, number>> = {
  'api_key.request_refused': 403,
  'user.request_refused': 403,
  'session.refused': 401,
  'organisation.request_refused': 401,
  'api_key.contents_read': 200,
  'user.contents_read': 200,
  'api_key.guardrail_failed': 446,
  'user.guardrail_failed': 446,
};

/** The part of such an event that is shown. */
type Counted = { method?: string; route?: string; status?: number; addresses: (string | { address: string })[] };

/**
 * Returns the row of an event; null for events that a worker causes without a request, such as settling lines. A large
 * batch has thousands of such events.
 */
function toActivity(event: PositionedEvent): ActivityTable | null {
  const { type, eventId, streamId, recordedAt, metadata } = event;
  const { actor, request_id, trace_id, address, method, path } = metadata;
  if (actor.type === 'system' && actor.id === 'worker') return null;
  const countedStatus = counted[type];
  const facts = countedStatus === undefined ? null : (event.data as Counted);
  const [from] = facts?.addresses ?? [];
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
    address: address ?? (typeof from === 'object' ? from.address : from) ?? null,
    method: method ?? facts?.method ?? null,
    uri: path ?? facts?.route ?? null,
    // Other events are changes, and only a successful request changes something.
    status: facts?.status ?? countedStatus ?? (method === undefined ? null : 200),
  };
}

/**
 * A change of a user's membership belongs to the workspace that it names, everything else to the workspace that stores
 * it.
 */
function changedWorkspace({ type, workspaceId, data }: PositionedEvent): string {
  return type.startsWith('user.workspace_') ? (data as { workspace_id: string }).workspace_id : workspaceId;
}
