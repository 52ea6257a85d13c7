import type { Kysely } from 'kysely';
import { EventStreamQuery } from '#libs/contracts/event-stream.ts';
import type { Database } from '#libs/database/schema.ts';
import { listEvents, placeOf } from '#libs/event-log/list-events.ts';
import { newestClosed } from '#libs/event-log/read-events.ts';
import { upcastsOf } from '#libs/event-log/inline-model.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { inlineModels } from '../../platform/models.ts';
import type { EventStreams } from '../event-streams.ts';
import { followWorkspace, type EventStreamDeps } from '../open-event-stream.ts';
import { toEventObject } from './list-events.ts';

type Deps = EventStreamDeps & { db: Kysely<Database>; eventStreams: EventStreams };

const upcasts = upcastsOf(inlineModels);
const pageLength = 100;

/**
 * GET /v1/events/stream: server-sent events (WHATWG HTML 9.2), of which each is one event of the log, with its id, so that a
 * client that connects again misses none. It ends when the key does, when the client does not read for the stall timeout, and when
 * the process stops. Errors: invalid_request (after), rate_limited (too many streams).
 */
export const streamEvents = ({ db, eventStreams, ...deps }: Deps): Route => ({
  method: 'GET',
  path: '/v1/events/stream',
  operationId: 'streamEvents',
  summary: 'Follow the events of the log as they happen; a client that connects again misses none',
  tag: 'Audit',
  scope: 'audit.read',
  responses: {
    200: {
      description: 'Events without end: each `data` is an event as `GET /v1/events` has it.',
      contentType: 'text/event-stream',
    },
  },
  ...withInput({ query: EventStreamQuery }, async ({ query }, request, response) => {
    const { workspaceId } = callerOf(request);
    const after = request.get('last-event-id') || query.after;
    const start = after === undefined ? await newestClosed(db) : await placeOf(db, workspaceId, after);
    const watch = eventStreams.watch(workspaceId, query.calls === 'true');
    await followWorkspace(
      deps,
      { request, response, watch, start },
      {
        async sendEvents(from, stream) {
          let position = from;
          for (;;) {
            const page = { workspaceId, stream: query.stream ?? null, type: null, after: position, limit: pageLength };
            const { events, hasMore } = await listEvents(db, page, upcasts);
            const last = events.at(-1);
            if (last === undefined) return position;
            const frames = events.map(
              (event) => `id: ${event.eventId}\ndata: ${JSON.stringify(toEventObject(event))}\n\n`,
            );
            if (!(await stream.send(frames.join('')))) return null;
            position = last;
            if (!hasMore) return position;
          }
        },
        callFrame: (newest) => `event: calls\ndata: ${JSON.stringify({ newest })}\n\n`,
      },
    );
  }),
});
