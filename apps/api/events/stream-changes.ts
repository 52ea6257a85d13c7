import type { Request, Response } from 'express';
import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { runForWorkspace } from '#libs/database/workspace-binding.ts';
import { listChanges } from '#libs/event-log/list-events.ts';
import { newestClosed } from '#libs/event-log/read-events.ts';
import type { Caller } from '#libs/http/caller.ts';
import { getContext } from '#libs/http/request-context.ts';
import { hasScope } from '#libs/http/rights.ts';
import type { Route } from '#libs/http/route.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import type { EventStreams } from '#libs/activity/event-streams.ts';
import { followWorkspace, type EventStreamDeps } from './open-event-stream.ts';
import { tooManyStreams } from '../document-texts.ts';

type Deps = EventStreamDeps & { db: Kysely<Database>; eventStreams: EventStreams };

/** The scope that a key needs to be informed about changes of a record, by the noun of its events. */
const scopesOfNouns: Readonly<Record<string, string>> = {
  batch: 'batches.read',
  file: 'files.read',
  fine_tuning_job: 'fine_tuning.read',
  ...Object.fromEntries(resourceKinds.map(({ noun, area }) => [noun, `${area}.read`])),
};

const pageLength = 500;

/** A page can see events but not comments, so the heartbeat shows the console that the server still answers. */
const heartbeatMs = 2_000;

/**
 * GET /v1/session/changes: server-sent events that name the changed records, without the changes themselves, so that a
 * page reads them again. Any key can follow them, and is informed about the records that it can read. It needs no
 * scope, so it authenticates itself. Errors: unauthenticated, rate_limited (too many streams).
 */
export const streamChanges = ({ db, eventStreams, ...deps }: Deps): Route => ({
  method: 'GET',
  path: '/v1/session/changes',
  operationId: 'streamChanges',
  summary: 'Stream changes of records that the key can read',
  description:
    'Server-sent events for pages that reload changed records: `event: change` with `{"noun": "batch", "id": ' +
    '"batch_…"}`, and `event: calls` when the request log has new records. Events have no IDs, so reload everything ' +
    'after a reconnect.',
  errors: { too_many_streams: tooManyStreams },
  tag: 'Sessions',
  scope: 'public',
  responses: {
    200: {
      description:
        'An endless stream. Each `data` has the `noun` and the `id` of a record. A `heartbeat` is sent after two seconds without a change.',
      contentType: 'text/event-stream',
    },
  },
  async handler(request, response) {
    const caller = await deps.authenticate(request);
    getContext(request).caller = caller;
    await runForWorkspace(caller.workspaceId, () => follow({ db, eventStreams, ...deps }, caller, request, response));
  },
});

async function follow(
  { db, eventStreams, ...deps }: Deps,
  caller: Caller,
  request: Request,
  response: Response,
): Promise<void> {
  const { workspaceId } = caller;
  const start = await newestClosed(db);
  const watch = eventStreams.watch(caller, hasScope(caller, 'logs.read'));
  await followWorkspace(
    deps,
    { request, response, caller, watch, start, mayFollow: () => true },
    {
      async sendEvents(from, stream) {
        const changed = new Map<string, { noun: string; id: string }>();
        let position = from;
        for (let hasMore = true; hasMore;) {
          const now = await stream.caller();
          if (now === null) return null;
          const events = await listChanges(db, { workspaceId, after: position, limit: pageLength });
          for (const { type, streamId: id } of events) {
            const noun = type.split('.')[0] ?? '';
            const scope = scopesOfNouns[noun] ?? 'audit.read';
            if (hasScope(now, scope) || hasScope(now, 'audit.read')) changed.set(`${noun} ${id}`, { noun, id });
          }
          position = events.at(-1) ?? position;
          hasMore = events.length === pageLength;
          if (changed.size < pageLength && hasMore) continue;
          const frames = [...changed.values()].map((change) => `event: change\ndata: ${JSON.stringify(change)}\n\n`);
          changed.clear();
          if (frames.length > 0 && !(await stream.send(frames.join('')))) return null;
        }
        return position;
      },
      callFrame: () => 'event: calls\ndata: {}\n\n',
      heartbeat: { everyMs: heartbeatMs, frame: 'event: heartbeat\ndata: {}\n\n' },
    },
  );
}
