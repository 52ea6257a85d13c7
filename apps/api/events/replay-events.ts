import type { z } from 'zod';
import { RecordState, ReplayQuery } from '#libs/contracts/logs/events.ts';
import type { FoldedRow } from '#libs/event-log/fold-log.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';
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
    answerFromReplay(deps, ...exchange, { stream, workspaceId }, async (states) => {
      const state = await findState(states, { version, at });
      if (state === null) throw noSuchRecord(stream);
      return state;
    }),
  ),
});

/** The state after the last event up to a moment; null if the record did not exist yet. */
export async function findState(
  states: AsyncIterable<ReplayedEvent>,
  until: Moment,
): Promise<z.output<typeof RecordState> | null> {
  let last: ReplayedEvent | undefined;
  let isNewest = true;
  for await (const state of states) {
    isNewest = !isAfterMoment(state, until);
    if (!isNewest) break;
    last = state;
  }
  return last === undefined ? null : toRecordState(last.row, last.event, isNewest);
}

export const toRecordState = (
  row: FoldedRow,
  { eventId, type }: Pick<PositionedEvent, 'eventId' | 'type'>,
  isNewest: boolean,
): z.output<typeof RecordState> => ({
  object: 'record.state',
  stream: row.id,
  version: row.version,
  event: { id: eventId, type },
  recorded_at: row.updated_at.toISOString(),
  is_newest: isNewest,
  state: toPublicState({ row }),
});
