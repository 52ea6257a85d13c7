import { hash } from 'node:crypto';
import { expect, test } from 'vitest';
import { eventTypes } from '#apps/api/events/event-types.ts';
import { inlineModels } from '#apps/platform/models.ts';
import { saltedSha256, toEnvelope } from '#test/event-envelope.ts';
import {
  foldEvent,
  getEventNouns,
  collectUpcasts,
  type AnyInlineModel,
  type StreamRow,
} from '#libs/event-log/inline-model.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { currentVersion, upcast } from '#libs/event-log/upcast.ts';
import { readGoldenLog, readGoldenRows } from './golden-log.ts';

const golden = readGoldenLog();
const upcasts = collectUpcasts(inlineModels);

/** The kit folds it for every kind of record alike, so the events of one kind are enough. */
function isFoldedByKit(type: string): boolean {
  const [noun, verb = ''] = type.split('.');
  const kind = resourceKinds.find((each) => each.noun === noun);
  const { history = {} } = kind ?? {};
  return kind !== undefined && !history.lookup && !history.upcasts && history.events?.[verb] === undefined;
}

test('the golden log has every event type that is folded in its own way, in every schema version', () => {
  const own = eventTypes.filter((type) => !isFoldedByKit(type));
  const versions = own.flatMap((type) =>
    Array.from({ length: currentVersion(upcasts, type) }, (_value, index) => `${type} ${index + 1}`),
  );
  const present = new Set(golden.map(({ event }) => `${event.type} ${event.schemaVersion}`));
  expect(versions.filter((version) => !present.has(version))).toEqual([]);
});

test.each(golden)('the hash of $event.type $event.eventId stays what it was', (one) => {
  const dataSha256 = saltedSha256(one.dataSalt, one.event.data);
  const metadataSha256 = saltedSha256(one.metadataSalt, one.metadata);
  expect(hash('sha256', toEnvelope(one.event, { dataSha256, metadataSha256 }))).toBe(one.sha256);
});

test('every event of the golden log can be converted to the current version of its type', () => {
  for (const { event } of golden)
    expect(upcast(upcasts, event).schemaVersion).toBe(currentVersion(upcasts, event.type));
});

test('the golden log folds to the same rows as ever', () => {
  const rows: { model: string; row: StreamRow }[] = [];
  for (const events of Map.groupBy(golden, ({ event }) => event.streamId).values()) {
    const open = new Map<AnyInlineModel, StreamRow & Record<string, unknown>>();
    for (const { event } of events) {
      for (const model of inlineModels) {
        if (!getEventNouns(model).includes(event.type.split('.')[0] ?? '')) continue;
        if (!model.perEvent) open.set(model, foldEvent(model, open.get(model), event as never));
        else if (model.perEvent.rowId(event as never) !== null) {
          rows.push({ model: model.name, row: foldEvent(model, undefined, event as never) });
        }
      }
    }
    for (const [model, row] of open) rows.push({ model: model.name, row });
  }
  const ordered = rows.toSorted((a, b) => (a.model + a.row.id < b.model + b.row.id ? -1 : 1));
  expect(JSON.parse(JSON.stringify(ordered))).toEqual(readGoldenRows());
});
