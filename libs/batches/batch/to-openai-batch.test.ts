import { expect, test } from 'vitest';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import { foldEvent } from '#libs/event-log/inline-model.ts';
import type { BatchEvent } from './batch.ts';
import { batchModel, type BatchRow } from './batch-model.ts';
import { toOpenAiBatch } from './to-openai-batch.ts';

const created: BatchEvent = {
  type: 'batch.created',
  data: {
    input_file_id: 'file-1',
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    metadata: null,
    expires_at: '2026-01-02T00:00:00.000Z',
    output_expires_after: null,
    target: { type: 'none' },
    gateway_options: {},
    headers: {},
  },
};

function shownAfter(...events: BatchEvent[]): string {
  const row = [created, ...events].reduce<BatchRow | undefined>((before, event, index) => {
    const recorded: RecordedEvent<BatchEvent> = {
      ...event,
      eventId: String(index),
      workspaceId: 'ws_1',
      streamId: 'batch_1',
      streamVersion: index + 1,
      schemaVersion: 1,
      recordedAt: new Date(index),
    };
    return foldEvent(batchModel, before, recorded);
  }, undefined);
  return toOpenAiBatch(row as BatchRow).status;
}

const validated: BatchEvent = { type: 'batch.validated', data: { line_count: 1, chunk_count: 1, model: null } };
const cancelled: BatchEvent = { type: 'batch.cancel_requested', data: {} };
const finalizing = (reason: 'completed' | 'cancelled' | 'expired'): BatchEvent => ({
  type: 'batch.finalizing',
  data: { reason },
});

test('a batch that was cancelled is cancelling until it is cancelled', () => {
  expect(shownAfter(validated, cancelled)).toBe('cancelling');
  expect(shownAfter(validated, cancelled, finalizing('cancelled'))).toBe('cancelling');
});

test('any other batch is finalizing while its files are written', () => {
  expect(shownAfter(validated, finalizing('completed'))).toBe('finalizing');
  expect(shownAfter(validated, finalizing('expired'))).toBe('finalizing');
});
