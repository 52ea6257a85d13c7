import { hash } from 'node:crypto';
import { expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import type { BatchEvent } from '#libs/batches/batch.ts';
import { canonicalForm } from '#libs/event-log/canonical-form.ts';
import { foldEvent, nounsOf, upcastsOf, type AnyInlineModel, type StreamRow } from '#libs/event-log/inline-model.ts';
import { currentVersion, upcast } from '#libs/event-log/upcast.ts';
import type { FileEvent } from '#libs/files/file-model.ts';
import type { FineTuningEvent } from '#libs/fine-tuning/fine-tuning-job.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { eventTypesOf } from '#libs/resources/resource-model.ts';
import { readGoldenLog, readGoldenRows } from './golden-log.ts';

type AnyEvent = BatchEvent | FileEvent | FineTuningEvent;

// A new type of event does not compile until it is listed here, and then fails below until it is in the golden log.
const types: Record<AnyEvent['type'], true> = {
  'batch.budget_wait_began': true,
  'batch.cancel_requested': true,
  'batch.cancelled': true,
  'batch.chunk_put_off': true,
  'batch.chunk_redelivered': true,
  'batch.completed': true,
  'batch.created': true,
  'batch.expired': true,
  'batch.failed': true,
  'batch.finalizing': true,
  'batch.lines_settled': true,
  'batch.paused': true,
  'batch.resumed': true,
  'batch.validated': true,
  'file.deleted': true,
  'file.expired': true,
  'file.uploaded': true,
  'fine_tuning_job.cancel_requested': true,
  'fine_tuning_job.checkpoint_recorded': true,
  'fine_tuning_job.created': true,
  'fine_tuning_job.event_recorded': true,
  'fine_tuning_job.files_uploaded': true,
  'fine_tuning_job.pause_requested': true,
  'fine_tuning_job.provider_accepted': true,
  'fine_tuning_job.request_answered': true,
  'fine_tuning_job.resume_requested': true,
  'fine_tuning_job.status_changed': true,
};

const golden = readGoldenLog();
const upcasts = upcastsOf(inlineModels);

test('the golden log has every event type, in every schema version', () => {
  const versions = [...Object.keys(types), ...resourceKinds.flatMap(eventTypesOf)].flatMap((type) =>
    Array.from({ length: currentVersion(upcasts, type) }, (_value, index) => `${type} ${index + 1}`),
  );
  const present = new Set(golden.map(({ event }) => `${event.type} ${event.schemaVersion}`));
  expect(versions.filter((version) => !present.has(version))).toEqual([]);
});

test.each(golden)('the canonical form and the hash of $event.type $event.eventId stay what they were', (one) => {
  expect(canonicalForm(one.event, one.metadata)).toBe(one.canonical);
  expect(hash('sha256', one.canonical)).toBe(one.sha256);
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
        if (!nounsOf(model).includes(event.type.split('.')[0] ?? '')) continue;
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
