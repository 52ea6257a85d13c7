import type { Request } from 'express';
import type { Kysely } from 'kysely';
import { EventList, EventListQuery } from '#libs/contracts/logs/events.ts';
import type { Database } from '#libs/database/schema.ts';
import { collectUpcasts } from '#libs/event-log/inline-model.ts';
import { listEvents as readEvents, type ListedEvent } from '#libs/event-log/list-events.ts';
import type { PageReads } from '#libs/http/answers/page-reads.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { sendJsonList, sendPieces } from '#libs/http/answers/send-pieces.ts';
import { chosenLog } from '#libs/records/choose-workspace.ts';
import { toEventObject } from '#libs/records/public-event.ts';
import { inlineModels } from '../../platform/models.ts';
import { linesType, wantsLines } from './open-event-stream.ts';

export const unknownCursor = { invalid_value: '`after` is not the ID of a retained event' };

const upcasts = collectUpcasts(inlineModels);

type Deps = { db: Kysely<Database>; eventPages: PageReads; stallTimeoutMs: number };

/** GET /v1/events: the event log of the caller's workspace. Errors: invalid_request (limit, cursor). */
export const listEvents = ({ db, eventPages, stallTimeoutMs }: Deps): Route => ({
  method: 'GET',
  path: '/v1/events',
  operationId: 'listEvents',
  summary: 'List the events of the log, oldest first',
  description:
    'Every change is an event. To read all events without gaps, send the ID of the last event as `after`. With `Accept: ' +
    'application/x-ndjson`, each line is an event, and the header `Link` has the next page.',
  errors: unknownCursor,
  tag: 'Audit',
  scope: 'audit.read',
  responses: { 200: { description: 'A page of events.', schema: EventList } },
  ...withInput({ query: EventListQuery }, async ({ query }, request, response) => {
    const { stream = null, type = null, after = null, limit, start_time: startTime, end_time: endTime } = query;
    const workspaceId = await chosenLog(db, getCaller(request), query.workspace_id);
    const { items, hasMore, nextAfter } = await eventPages.forAnswer(request, response, (_signal, spend) => {
      const part = { workspaceId, stream, type, startTime, endTime };
      const page = { ...part, after, limit, bytesMax: eventPages.bytesMax, spend };
      return readEvents(db, page, upcasts, toEventText);
    });
    if (wantsLines(request, 'application/json')) {
      if (hasMore && nextAfter !== null) response.setHeader('link', nextPage(request, nextAfter));
      response.setHeader('content-type', linesType);
      return void (await sendPieces(response, items.values().flatMap(toLine), stallTimeoutMs));
    }
    const ids = { first_id: items[0]?.id ?? null, last_id: nextAfter };
    const rest = { ...ids, has_more: hasMore };
    const list = { object: 'list', name: 'data', items: items.values().map(({ json }) => json), rest };
    await sendJsonList(response, list, stallTimeoutMs);
  }),
});

const lineEnd = Buffer.from('\n');
export const toLine = ({ json }: EventText): Buffer[] => [json, lineEnd];

/** The address of the next page, as in RFC 8288. */
function nextPage({ path, query }: Request, after: string): string {
  const parameters = new URLSearchParams({ ...(query as Record<string, string>), after });
  return `<${path}?${parameters.toString()}>; rel="next"`;
}

type EventText = { id: string; json: Buffer };

/** An event as clients see it, as JSON: a parsed event takes much more memory. */
export const toEventText = (event: ListedEvent): EventText => ({
  id: event.eventId,
  json: Buffer.from(JSON.stringify(toEventObject(event))),
});
