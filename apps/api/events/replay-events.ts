import type { z } from 'zod';
import { RecordState, ReplayQuery } from '#libs/contracts/logs/events.ts';
import type { ReplayedEvent } from '#libs/event-log/replay-stream.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import {
  answerFromReplay,
  isAfterMoment,
  noSuchRecord,
  replayErrors,
  toPublicState,
  type Moment,
  type ReplayDeps,
} from './replay-record.ts';

/**
 * GET /v1/events/replay: the state of a record at a moment, folded from its events by the same code that made its row.
 * Errors: not_found for a record that the workspace does not have, or did not have yet; invalid_request
 * (`replay_too_long`).
 */
export const replayEvents = (deps: ReplayDeps): Route => ({
  method: 'GET',
  path: '/v1/events/replay',
  operationId: 'replayEvents',
  summary: 'Show a record at an earlier moment by replaying its events',
  description:
    'Folds the events of the record with the same code that wrote its row. `version` or `at` select the moment; the ' +
    'default is the latest event. Reading stops after 20 seconds.',
  errors: replayErrors,
  tag: 'Audit',
  scope: 'audit.read',
  responses: { 200: { description: 'The record as it was.', schema: RecordState } },
  ...withInput({ query: ReplayQuery }, ({ query: { stream, workspace_id: workspaceId, version, at } }, ...exchange) =>
    answerFromReplay(deps, ...exchange, { stream, workspaceId }, (states) => replay(stream, { version, at }, states)),
  ),
});

/** The state of a record after the last event up to a moment. */
async function replay(
  stream: string,
  until: Moment,
  states: AsyncIterable<ReplayedEvent>,
): Promise<z.output<typeof RecordState>> {
  let last: ReplayedEvent | undefined;
  let isNewest = true;
  for await (const state of states) {
    isNewest = !isAfterMoment(state, until);
    if (!isNewest) break;
    last = state;
  }
  if (last === undefined) throw noSuchRecord(stream);
  const { eventId: id, type, streamVersion: version, recordedAt } = last.event;
  return {
    object: 'record.state',
    stream,
    version,
    event: { id, type },
    recorded_at: recordedAt.toISOString(),
    is_newest: isNewest,
    state: toPublicState(last),
  };
}
