import { isDeepStrictEqual } from 'node:util';
import { createPatch, type Operation } from 'rfc6902';
import type { z } from 'zod';
import { DiffQuery, RecordDiff } from '#libs/contracts/logs/events.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';
import type { ReplayedEvent } from '#libs/event-log/replay-stream.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import {
  answerFromReplay,
  isAfterMoment,
  noSuchRecord,
  replayErrors,
  toFields,
  toPublicState,
  type Moment,
  type ReplayDeps,
} from './replay-record.ts';

/**
 * GET /v1/events/diff: what changed in a record between two moments, and by which events. Errors: as GET
 * /v1/events/replay, and invalid_request when `from` is later than `to`.
 */
export const diffEvents = (deps: ReplayDeps): Route => ({
  method: 'GET',
  path: '/v1/events/diff',
  operationId: 'diffEvents',
  summary: 'Show what changed in a record between two moments',
  description:
    'Replays the record like `GET /v1/events/replay`, and returns a JSON Patch (RFC 6902) that turns the earlier ' +
    '`state` into the later one. `changes` names the events behind each changed member. Long lists that differ are ' +
    'replaced as a whole.',
  errors: replayErrors,
  tag: 'Audit',
  scope: 'audit.read',
  responses: { 200: { description: 'The changes of the record.', schema: RecordDiff } },
  ...withInput({ query: DiffQuery }, ({ query }, ...exchange) => {
    const { stream, workspace_id: workspaceId, from = { version: 0 }, to = {} } = query;
    refuseReversed(from, to);
    return answerFromReplay(deps, ...exchange, { stream, workspaceId }, (states) => diff(stream, { from, to }, states));
  }),
});

function refuseReversed(from: Moment, to: Moment): void {
  const areVersions = (from.version ?? 0) > (to.version ?? Number.POSITIVE_INFINITY);
  const areTimes = (from.at?.getTime() ?? 0) > (to.at?.getTime() ?? Number.POSITIVE_INFINITY);
  if (!areVersions && !areTimes) return;
  const message = "Invalid 'from': it is later than 'to'. Send the earlier moment as 'from'.";
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'from' });
}

/** The events that changed one member: their number, and the last of them. */
type MemberChanges = { count: number; events: PositionedEvent[] };

/** How many events are shown for each member. A batch has thousands that change its counters. */
const shownEvents = 10;

async function diff(
  stream: string,
  { from, to }: { from: Moment; to: Moment },
  states: AsyncIterable<ReplayedEvent>,
): Promise<z.output<typeof RecordDiff>> {
  const changes = new Map<string, MemberChanges>();
  let before: ReplayedEvent | undefined;
  let last: ReplayedEvent | undefined;
  let isNewest = true;
  for await (const state of states) {
    isNewest = !isAfterMoment(state, to);
    if (!isNewest) break;
    if (!isAfterMoment(state, from)) before = state;
    else addChanges(changes, last, state);
    last = state;
  }
  if (last === undefined) throw noSuchRecord(stream);
  const patch = createStatePatch(before === undefined ? {} : toPublicState(before), toPublicState(last));
  const members = new Set(patch.map(({ path }) => /^\/[^/]*/.exec(path)?.[0] ?? ''));
  return {
    object: 'record.diff',
    stream,
    from: { version: before?.event.streamVersion ?? 0, recorded_at: before?.event.recordedAt.toISOString() ?? null },
    to: { version: last.event.streamVersion, recorded_at: last.event.recordedAt.toISOString() },
    is_newest: isNewest,
    patch,
    changes: [...members].map((path) => {
      const { count, events } = changes.get(path) ?? { count: 0, events: [] };
      return { path, count, events: events.map(toShownEvent) };
    }),
  };
}

/** Adds an event to each member that it changed. Members that are not in the patch are not shown. */
function addChanges(
  changes: Map<string, MemberChanges>,
  before: ReplayedEvent | undefined,
  after: ReplayedEvent,
): void {
  const earlier = before === undefined ? {} : toFields(before);
  const later = toFields(after);
  for (const name of new Set([...Object.keys(earlier), ...Object.keys(later)])) {
    if (earlier[name] === later[name] || isDeepStrictEqual(earlier[name], later[name])) continue;
    const path = `/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`;
    const change = changes.get(path) ?? { count: 0, events: [] };
    changes.set(path, { count: change.count + 1, events: [...change.events.slice(1 - shownEvents), after.event] });
  }
}

const toShownEvent = ({ eventId, type, streamVersion, recordedAt, metadata }: PositionedEvent) => ({
  id: eventId,
  type,
  stream_version: streamVersion,
  recorded_at: recordedAt.toISOString(),
  actor: metadata.actor,
});

// The comparison of two lists takes time and memory with the product of their lengths.
const listPairsMax = 2_500;
const comparisonsMax = 20_000;

/**
 * Returns the patch between two states as they are in JSON. It is not the shortest one for long lists, and for states
 * whose comparison would take too long.
 *
 * @testOnly
 */
export function createStatePatch(before: object, after: object): z.output<typeof RecordDiff>['patch'] {
  let comparisons = 0;
  const asJson = (state: object): unknown => JSON.parse(JSON.stringify(state));
  const patch = createPatch(asJson(before), asJson(after), (one: unknown, other: unknown, pointer) => {
    comparisons += 1;
    const areLong = Array.isArray(one) && Array.isArray(other) && one.length * other.length > listPairsMax;
    if (!areLong && comparisons <= comparisonsMax) return undefined;
    return isDeepStrictEqual(one, other) ? [] : [{ op: 'replace', path: pointer.toString(), value: other }];
  });
  return patch as Extract<Operation, { op: 'add' | 'remove' | 'replace' }>[];
}
