import type { Kysely } from 'kysely';
import type { z } from 'zod';
import { RecordState, ReplayQuery } from '#libs/contracts/logs/events.ts';
import type { Database } from '#libs/database/schema.ts';
import { foldEvent, getEventNouns, type StreamRow } from '#libs/event-log/inline-model.ts';
import { readStream, sliceBytesMax, type PositionedEvent } from '#libs/event-log/read-events.ts';
import { getCaller } from '#libs/http/request-context.ts';
import type { PageReads } from '#libs/http/answers/page-reads.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { chosenLog } from '#libs/records/choose-workspace.ts';
import { inlineModels } from '../../platform/models.ts';
import { publicData } from './list-audit-logs.ts';

/** The time limit for reading and folding events. A batch of many million lines has more events than that allows. */
const replayMsMax = 20_000;

/**
 * GET /v1/events/replay: the state of a record at a moment, folded from its events by the same code that made its row.
 * Errors: not_found for a record that the workspace does not have, or did not have yet; invalid_request
 * (`replay_too_long`).
 */
export const replayEvents = ({ db, replays }: { db: Kysely<Database>; replays: PageReads }): Route => ({
  method: 'GET',
  path: '/v1/events/replay',
  operationId: 'replayEvents',
  summary: 'Show a record at an earlier moment by replaying its events',
  description:
    'Folds the events of the record with the same code that wrote its row. `version` or `at` select the moment; the ' +
    'default is the latest event. Reading stops after 20 seconds.',
  errors: { replay_too_long: 'the record has too many events: choose an earlier moment' },
  tag: 'Audit',
  scope: 'audit.read',
  responses: { 200: { description: 'The record as it was.', schema: RecordState } },
  ...withInput({ query: ReplayQuery }, async ({ query }, request, response) => {
    const workspaceId = await chosenLog(db, getCaller(request), query.workspace_id);
    const { text } = await replays.forAnswer(request, response, async (signal, spend) => {
      const readPage = async (after: number): Promise<PositionedEvent[]> => {
        // Most records have one slice of events. Those with more are replayed at the pace of their workspace.
        if (after > 0) await spend(sliceBytesMax);
        signal.throwIfAborted();
        return await readStream(db, query.stream, after, 1_000, sliceBytesMax);
      };
      const state = JSON.stringify(await replay(workspaceId, query, readPage));
      return { text: state, bytes: state.length };
    });
    response.setHeader('content-type', 'application/json; charset=utf-8');
    response.end(text);
  }),
});

/** The state of a record after the last event that `query` allows. */
async function replay(
  workspaceId: string,
  query: z.output<typeof ReplayQuery>,
  readPage: (after: number) => Promise<PositionedEvent[]>,
): Promise<z.output<typeof RecordState>> {
  const until = {
    version: query.version ?? Number.POSITIVE_INFINITY,
    ms: query.at?.getTime() ?? Number.POSITIVE_INFINITY,
  };
  const endMs = performance.now() + replayMsMax;
  let row: (StreamRow & Record<string, unknown>) | undefined;
  let last: { eventId: string; type: string } | undefined;
  let isNewest = false;
  for (let after = 0, isOver = false; !isOver;) {
    const events = await readPage(after);
    isNewest = events.length === 0;
    isOver = isNewest;
    for (const event of events) {
      // The log of another workspace gets the same answer as a missing one.
      if (event.workspaceId !== workspaceId || performance.now() > endMs) {
        throw event.workspaceId === workspaceId ? tooLong(query.stream) : noSuchRecord(query.stream);
      }
      isOver = event.streamVersion > until.version || event.recordedAt.getTime() > until.ms;
      if (isOver) break;
      const noun = event.type.slice(0, event.type.indexOf('.'));
      const model = inlineModels.find((each) => each.perEvent === undefined && getEventNouns(each).includes(noun));
      if (model === undefined) throw noSuchRecord(query.stream);
      row = foldEvent(model, row, event as never);
      last = event;
      after = event.streamVersion;
    }
  }
  if (row === undefined || last === undefined) throw noSuchRecord(query.stream);
  const { id, workspace_id: _workspaceId, version, updated_at: updatedAt, last_event_id: _last, ...columns } = row;
  // The fields of most records are together in one column.
  const { data, lookup: _lookup, ...others } = columns;
  const fields = typeof data === 'object' && data !== null ? { ...others, ...data } : columns;
  return {
    object: 'record.state',
    stream: id,
    version,
    event: { id: last.eventId, type: last.type },
    recorded_at: updatedAt.toISOString(),
    is_newest: isNewest,
    state: publicData(fields),
  };
}

const noSuchRecord = (stream: string): GatewayError =>
  new GatewayError('not_found', null, `The record '${stream.slice(0, 100)}' did not exist at that moment.`, {
    param: 'stream',
  });

const tooLong = (stream: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'replay_too_long',
    `The record '${stream.slice(0, 100)}' has too many events to be replayed within ${replayMsMax / 1_000} s. Choose an earlier moment.`,
    { param: 'stream' },
  );
