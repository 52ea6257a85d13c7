import type { Kysely } from 'kysely';
import { EventStreamQuery } from '#libs/contracts/calls/event-stream.ts';
import type { Database } from '#libs/database/schema.ts';
import { findEvent, listEvents } from '#libs/event-log/list-events.ts';
import { logStart, newestClosed } from '#libs/event-log/read-events.ts';
import { collectUpcasts } from '#libs/event-log/inline-model.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { actsForOrganisation, hasScope } from '#libs/http/rights.ts';
import type { PageReads } from '#libs/http/answers/page-reads.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { chosenLog } from '#libs/records/choose-workspace.ts';
import { inlineModels } from '../../platform/models.ts';
import type { EventStreams } from '#libs/activity/event-streams.ts';
import { followWorkspace, wantsLines, type EventStreamDeps } from './open-event-stream.ts';
import { toEventText, toLine, unknownCursor } from './list-events.ts';
import { tooManyStreams } from '../document-texts.ts';

type Deps = EventStreamDeps & { db: Kysely<Database>; eventStreams: EventStreams; eventPages: PageReads };

const upcasts = collectUpcasts(inlineModels);
const pageLength = 100;
const frameEnd = Buffer.from('\n\n');
const toFrame = ({ id, json }: ReturnType<typeof toEventText>): Buffer[] => [
  Buffer.from(`id: ${id}\ndata: `),
  json,
  frameEnd,
];

/**
 * GET /v1/events/stream: server-sent events (WHATWG HTML 9.2), or lines. Each is one event of the log, with its ID, so
 * that a client that connects again misses none. It ends when the key does, when the client does not read for the stall
 * timeout, and when the process stops. Errors: invalid_request (after), rate_limited (too many streams).
 */
export const streamEvents = ({ db, eventStreams, eventPages, ...deps }: Deps): Route => ({
  method: 'GET',
  path: '/v1/events/stream',
  operationId: 'streamEvents',
  summary: 'Stream the event log',
  description:
    'Server-sent events, each with its ID. When you reconnect, send the last ID as `Last-Event-ID` to miss no event; ' +
    'browsers do this automatically. With `calls=true`, the stream also has `event: calls` when the request log has ' +
    'new records. With `Accept: application/x-ndjson`, each line is an event, calls are lines such as ' +
    '`{"object": "calls", "newest": "log_…"}`, and an empty line is sent every 15 seconds of silence.',
  errors: { ...unknownCursor, too_many_streams: tooManyStreams },
  tag: 'Audit',
  scope: 'audit.read',
  responses: {
    200: {
      description: 'An endless stream. Each `data` is an event in the format of `GET /v1/events`.',
      contentType: 'text/event-stream',
    },
  },
  ...withInput({ query: EventStreamQuery }, async ({ query }, request, response) => {
    const caller = getCaller(request);
    const { start_time: startTime, end_time: endTime } = query;
    const workspaceId = await chosenLog(db, caller, query.workspace_id);
    const after = request.get('last-event-id') || query.after;
    const newest = startTime === undefined ? await newestClosed(db) : logStart;
    const start = after === undefined ? newest : await findEvent(db, workspaceId, after);
    const asLines = wantsLines(request, 'text/event-stream');
    const watch = eventStreams.watch({ workspaceId, keyId: caller.keyId }, query.calls === 'true');
    await followWorkspace(
      deps,
      {
        request,
        response,
        caller,
        watch,
        start,
        asLines,
        mayFollow: (now) =>
          hasScope(now, 'audit.read') && (workspaceId === now.workspaceId || actsForOrganisation(now)),
      },
      {
        async sendEvents(from, stream) {
          let position = from;
          for (;;) {
            const { stream: only = null } = query;
            const { bytesMax } = eventPages;
            const part = { workspaceId, stream: only, type: null, startTime, endTime };
            const wanted = { ...part, after: position, limit: pageLength, bytesMax };
            if ((await stream.caller()) === null) return null;
            const { page, lease } = await eventPages.read(workspaceId, stream.signal, (spend) =>
              listEvents(db, { ...wanted, spend }, upcasts, toEventText),
            );
            try {
              for (const item of page.items) {
                if (!(await stream.send(Buffer.concat(asLines ? toLine(item) : toFrame(item))))) return null;
              }
            } finally {
              lease.release();
            }
            position = page.end ?? position;
            if (!page.hasMore) return endTime && endTime < new Date() ? null : position;
          }
        },
        callFrame: (newest) =>
          asLines
            ? `${JSON.stringify({ object: 'calls', newest })}\n`
            : `event: calls\ndata: ${JSON.stringify({ newest })}\n\n`,
      },
    );
  }),
});
