import type { Kysely } from 'kysely';
import { EventList, EventListQuery, type EventObject } from '#libs/contracts/events.ts';
import type { Database } from '#libs/database/schema.ts';
import { upcastsOf } from '#libs/event-log/inline-model.ts';
import { listEvents as readEvents, type ListedEvent } from '#libs/event-log/list-events.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { inlineModels } from '../../platform/models.ts';
import { publicData } from './list-audit-logs.ts';

const upcasts = upcastsOf(inlineModels);

/** GET /v1/events: the event log of the caller's workspace. Errors: invalid_request (limit, cursor). */
export const listEvents = ({ db }: { db: Kysely<Database> }): Route => ({
  method: 'GET',
  path: '/v1/events',
  operationId: 'listEvents',
  summary: 'List the events of the log, oldest first; a reader that goes on after the last one misses none',
  tag: 'Audit',
  scope: 'audit.read',
  responses: { 200: { description: 'A page of events.', schema: EventList } },
  ...withInput({ query: EventListQuery }, async ({ query }, request, response) => {
    const { stream = null, type = null, after = null, limit } = query;
    const { workspaceId } = callerOf(request);
    const { events, hasMore, nextAfter } = await readEvents(db, { workspaceId, stream, type, after, limit }, upcasts);
    const data = events.map(toEventObject);
    response.json({ object: 'list', data, first_id: data[0]?.id ?? null, last_id: nextAfter, has_more: hasMore });
  }),
});

/** An event as clients see it. */
export const toEventObject = (event: ListedEvent): EventObject => ({
  id: event.eventId,
  object: 'event',
  type: event.type,
  stream: event.streamId,
  stream_version: event.streamVersion,
  schema_version: event.schemaVersion,
  data: publicData(event.data as Record<string, unknown>),
  metadata: event.metadata,
  recorded_at: event.recordedAt.toISOString(),
  sha256: event.sha256,
});
