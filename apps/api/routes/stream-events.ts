import type { Request } from 'express';
import type { Kysely } from 'kysely';
import { EventStreamQuery } from '#libs/contracts/event-stream.ts';
import type { Database } from '#libs/database/schema.ts';
import { listEvents, placeOf } from '#libs/event-log/list-events.ts';
import { newestClosed, type Checkpoint } from '#libs/event-log/read-events.ts';
import { upcastsOf } from '#libs/event-log/inline-model.ts';
import type { Caller } from '#libs/http/caller.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { drained } from '#libs/http/send-pieces.ts';
import { inlineModels } from '../../platform/models.ts';
import type { EventStreams } from '../event-streams.ts';
import { toEventObject } from './list-events.ts';

type Deps = {
  db: Kysely<Database>;
  eventStreams: EventStreams;
  /** Throws when the key of the stream has been revoked or has expired. */
  authenticate: (request: Request) => Caller | Promise<Caller>;
  stallTimeoutMs: number;
};

const upcasts = upcastsOf(inlineModels);
const pageLength = 100;

/** A comment is sent after this long without an event, because proxies cut silent connections. The key is checked as often. */
const heartbeatMs = 15_000;

/**
 * GET /v1/events/stream: server-sent events (WHATWG HTML 9.2), of which each is one event of the log, with its id, so that a
 * client that connects again misses none. It ends when the key does, when the client does not read for the stall timeout, and when
 * the process stops. Errors: invalid_request (after), rate_limited (too many streams).
 */
export const streamEvents = ({ db, eventStreams, authenticate, stallTimeoutMs }: Deps): Route => ({
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
    response.on('close', () => watch.stop());
    response.setHeader('content-type', 'text/event-stream; charset=utf-8');
    response.setHeader('cache-control', 'no-store');
    response.setHeader('x-accel-buffering', 'no');
    response.flushHeaders();

    const send = async (frames: string): Promise<boolean> => {
      if (response.destroyed) return false;
      return response.write(frames) || (await drained(response, stallTimeoutMs));
    };
    /** Sends what follows a position; returns the new one, or null when the client has gone. */
    const sendEvents = async (from: Checkpoint): Promise<Checkpoint | null> => {
      let position = from;
      for (;;) {
        const page = { workspaceId, stream: query.stream ?? null, type: null, after: position, limit: pageLength };
        const { events, hasMore } = await listEvents(db, page, upcasts);
        const last = events.at(-1);
        if (last === undefined) return position;
        const frames = events.map((event) => `id: ${event.eventId}\ndata: ${JSON.stringify(toEventObject(event))}\n\n`);
        if (!(await send(frames.join('')))) return null;
        position = last;
        if (!hasMore) return position;
      }
    };

    let checkedMs = performance.now();
    const isStillAllowed = async (): Promise<boolean> => {
      if (performance.now() - checkedMs < heartbeatMs) return true;
      checkedMs = performance.now();
      try {
        await authenticate(request);
        return true;
      } catch {
        return false;
      }
    };

    // Clients know by it that everything from now on arrives.
    let isOpen = await send('retry: 1000\nevent: open\ndata: {}\n\n');
    let position: Checkpoint | null = start;
    while (isOpen) {
      const { hasEvents, newestCall, isOver } = await watch.next(heartbeatMs);
      if (isOver || response.destroyed) break;
      try {
        if (hasEvents) position = await sendEvents(position);
        if (position === null) break;
        if (newestCall !== null)
          isOpen = await send(`event: calls\ndata: ${JSON.stringify({ newest: newestCall })}\n\n`);
        else if (!hasEvents) isOpen = await send(': still here\n\n');
        isOpen &&= await isStillAllowed();
      } catch {
        break; // The database is away: the client connects again, with the id of the last event that it got.
      }
    }
    watch.stop();
    response.end();
  }),
});
