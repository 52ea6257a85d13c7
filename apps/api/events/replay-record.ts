import type { Request, Response } from 'express';
import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { replayStream, type ReplayedEvent } from '#libs/event-log/replay-stream.ts';
import type { PageReads, SpendBytes } from '#libs/http/answers/page-reads.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { chosenLog } from '#libs/records/choose-workspace.ts';
import { publicData } from '#libs/records/public-event.ts';
import { inlineModels } from '../../platform/models.ts';

export type ReplayDeps = { db: Kysely<Database>; replays: PageReads };

/** A moment in the history of a record: after an event, or at a time. The default is the newest state. */
export type Moment = { version?: number | undefined; at?: Date | undefined };

/** The time limit for reading and folding events. A batch of many million lines has more events than that allows. */
const replayMsMax = 20_000;

export const replayErrors = { replay_too_long: 'the record has too many events: choose an earlier moment' };

/**
 * Answers with an object that is made from the states of a record, which it gets one by one, from the first on, within
 * the limits for replays. Throws not_found for a record that the workspace does not have, and invalid_request
 * (`replay_too_long`).
 */
export async function answerFromReplay(
  { db, replays }: ReplayDeps,
  request: Request,
  response: Response,
  { stream, workspaceId: wanted }: { stream: string; workspaceId: string | undefined },
  toAnswer: (states: AsyncIterable<ReplayedEvent>) => Promise<object>,
): Promise<void> {
  const workspaceId = await chosenLog(db, getCaller(request), wanted);
  const { text } = await replays.forAnswer(request, response, async (signal, spend) => {
    const checked = async function* (): AsyncGenerator<ReplayedEvent> {
      for await (const state of replayRecord(db, stream, signal, spend)) {
        // The log of another workspace gets the same answer as a missing one.
        if (state.event.workspaceId !== workspaceId) throw noSuchRecord(stream);
        yield state;
      }
    };
    const answer = JSON.stringify(await toAnswer(checked()));
    return { text: answer, bytes: answer.length };
  });
  response.setHeader('content-type', 'application/json; charset=utf-8');
  response.end(text);
}

/** The states of a record, from the first on. Throws invalid_request (`replay_too_long`), and the reason of `signal`. */
export async function* replayRecord(
  db: Kysely<Database>,
  stream: string,
  signal: AbortSignal,
  spend: SpendBytes,
): AsyncGenerator<ReplayedEvent> {
  const endMs = performance.now() + replayMsMax;
  const states = replayStream(db, inlineModels, stream, async (bytes) => {
    await spend(bytes);
    signal.throwIfAborted();
  });
  for await (const state of states) {
    if (performance.now() > endMs) throw tooLong(stream);
    yield state;
  }
}

/** Whether an event came after a moment. */
export const isAfterMoment = ({ event }: ReplayedEvent, { version, at }: Moment): boolean =>
  event.streamVersion > (version ?? Number.POSITIVE_INFINITY) ||
  event.recordedAt.getTime() > (at?.getTime() ?? Number.POSITIVE_INFINITY);

/** The members of a record, with secrets. The fields of most records are together in one column. */
export function toFields({ row }: Pick<ReplayedEvent, 'row'>): Record<string, unknown> {
  const { id: _id, workspace_id: _workspaceId, version: _version, updated_at: _updatedAt, ...stored } = row;
  const { last_event_id: _last, ...columns } = stored;
  const { data, lookup: _lookup, ...others } = columns;
  return typeof data === 'object' && data !== null ? { ...others, ...data } : columns;
}

/** The members of a record as clients see them. */
export const toPublicState = (state: Pick<ReplayedEvent, 'row'>): Record<string, unknown> =>
  publicData(toFields(state));

export const noSuchRecord = (stream: string): GatewayError =>
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
