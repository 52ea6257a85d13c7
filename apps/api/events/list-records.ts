import type { Kysely } from 'kysely';
import { z } from 'zod';
import { RecordList, RecordListQuery } from '#libs/contracts/logs/events.ts';
import type { Database } from '#libs/database/schema.ts';
import { rebind } from '#libs/database/workspace-binding.ts';
import { getEventNouns, type AnyInlineModel } from '#libs/event-log/inline-model.ts';
import { listStreams, readRow, type StreamQuery } from '#libs/event-log/list-streams.ts';
import type { SpendBytes } from '#libs/http/answers/page-reads.ts';
import { sendJsonList } from '#libs/http/answers/send-pieces.ts';
import { organisationId } from '#libs/http/caller.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { reachesEveryWorkspace } from '#libs/http/rights.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { workspaceKind } from '#libs/people/workspaces.ts';
import { chosenLog } from '#libs/records/choose-workspace.ts';
import { inlineModels } from '../../platform/models.ts';
import { resourceTypes } from './event-types.ts';
import { findState, toRecordState } from './replay-events.ts';
import { replayErrors, replayRecord, type ReplayDeps } from './replay-record.ts';

/** The organisation has events, but is not a record that someone creates. */
const kinds = resourceTypes.filter((type) => type !== 'organisation');
const Query = RecordListQuery.extend({
  kind: z.enum(kinds).describe('The noun of the event types, such as config or batch.'),
});

/** A page ends early after this time, so that records with many events are listed too. */
const pageMsMax = 5_000;

/**
 * GET /v1/events/records: the records of a kind at a moment, newest first. Errors: not_found (workspace); invalid_request
 * (cursor, `replay_too_long`).
 */
export const listRecords = ({ db, replays, stallTimeoutMs }: ReplayDeps & { stallTimeoutMs: number }): Route => ({
  method: 'GET',
  path: '/v1/events/records',
  operationId: 'listRecords',
  summary: 'List the records of a kind at an earlier moment, newest first',
  description:
    'Lists the records that existed and were not deleted at `at`, each as `GET /v1/events/replay` shows it. Records ' +
    'that have not changed since are read from their table, and the others are replayed. A page can end early, after ' +
    '4 MiB or 5 seconds: continue with `last_id` while `has_more` is true. With an organisation key and ' +
    '`workspace_id=org_default`, the kind `workspace` lists all workspaces.',
  errors: replayErrors,
  tag: 'Audit',
  scope: 'audit.read',
  responses: { 200: { description: 'A page of records as they were.', schema: RecordList } },
  ...withInput({ query: Query }, async ({ query }, request, response) => {
    const { kind, at = null, after = null, limit } = query;
    const caller = getCaller(request);
    let workspaceId: string | null = await chosenLog(db, caller, query.workspace_id);
    if (workspaceId === organisationId && kind === workspaceKind.noun && reachesEveryWorkspace(caller)) {
      // Each workspace is a record in its own log.
      workspaceId = null;
      rebind(null);
    }
    const listed = { model: findModel(kind), noun: kind, workspaceId, at, after, limit };
    const { items, lastId, hasMore } = await replays.forAnswer(request, response, (signal, spend) =>
      readRecords(db, { ...listed, bytesMax: replays.bytesMax }, signal, spend),
    );
    const rest = { first_id: items[0]?.id ?? null, last_id: lastId, has_more: hasMore };
    const list = { object: 'list', name: 'data', items: items.values().map(({ json }) => json), rest };
    await sendJsonList(response, list, stallTimeoutMs);
  }),
});

function findModel(noun: string): AnyInlineModel {
  const model = inlineModels.find((each) => each.perEvent === undefined && getEventNouns(each).includes(noun));
  if (model === undefined) throw new Error(`no model folds the events of ${noun}`);
  return model;
}

type RecordPage = { items: { id: string; json: Buffer }[]; lastId: string | null; hasMore: boolean; bytes: number };

/** Reads one record after the other, and keeps only the text of each. */
async function readRecords(
  db: Kysely<Database>,
  query: StreamQuery & { bytesMax: number },
  signal: AbortSignal,
  spend: SpendBytes,
): Promise<RecordPage> {
  const endMs = performance.now() + pageMsMax;
  const streams = await listStreams(db, { ...query, limit: query.limit + 1 });
  const page: RecordPage = { items: [], lastId: null, hasMore: streams.length > query.limit, bytes: 0 };
  for (const { id, isUnchanged } of streams.slice(0, query.limit)) {
    const isStarted = page.lastId !== null;
    if (isStarted && performance.now() > endMs) return { ...page, hasMore: true };
    signal.throwIfAborted();
    const unchanged = isUnchanged ? await readUnchanged(db, query, id) : null;
    const state = unchanged ?? (await findState(replayRecord(db, id, signal, spend), { at: query.at ?? undefined }));
    const json = state && Buffer.from(JSON.stringify(state));
    if (json && isStarted && page.bytes + json.length > query.bytesMax) return { ...page, hasMore: true };
    page.lastId = id;
    if (json === null) continue;
    page.items.push({ id, json });
    page.bytes += json.length;
  }
  return page;
}

/** The state of a record that has not changed since the moment; null if it has changed meanwhile. */
async function readUnchanged(db: Kysely<Database>, { model, at }: StreamQuery, id: string) {
  const found = await readRow(db, model, id);
  if (found === undefined || (at !== null && found.row.updated_at > at)) return null;
  return toRecordState(found.row, found.lastEvent, true);
}
