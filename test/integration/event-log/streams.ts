import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import type { Kysely } from 'kysely';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import type { Command, EventLog } from '#libs/event-log/event-log.ts';
import { closedLagSeconds } from '#libs/event-log/read-events.ts';
import type { Database } from '#libs/database/schema.ts';
import type { FileEvent } from '#libs/files/file-model.ts';
import { eventually } from '#test/eventually.ts';

/** A command of nobody in particular over these streams. */
export const commandOn = (...streams: string[]): Command => ({
  workspaceId: 'ws_1',
  streams,
  metadata: { actor: { type: 'system', id: 'test' } },
});

export const batchCreated = (
  data: Partial<Extract<BatchEvent, { type: 'batch.created' }>['data']> = {},
): BatchEvent => ({
  type: 'batch.created',
  data: {
    input_file_id: 'file-input',
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    metadata: null,
    expires_at: '2030-01-01T00:00:00.000Z',
    output_expires_after: null,
    target: { type: 'none' },
    gateway_options: {},
    headers: {},
    ...data,
  },
});

export const batchValidated = (lineCount: number): BatchEvent => ({
  type: 'batch.validated',
  data: { line_count: lineCount, chunk_count: 1, model: 'gpt-5-mini' },
});

/** An event that may happen to a running batch any number of times; `unsettled` tells one from another. */
export const chunkRedelivered = (unsettled: number): BatchEvent => ({
  type: 'batch.chunk_redelivered',
  data: { chunk: 0, attempt: 1, unsettled },
});

export const fileUploaded = (data: Partial<Extract<FileEvent, { type: 'file.uploaded' }>['data']> = {}): FileEvent => ({
  type: 'file.uploaded',
  data: { purpose: 'batch', filename: 'in.jsonl', bytes: 12, sha256: 'aa', blob: 'blob-1', expires_at: null, ...data },
});

export async function createBatches(eventLog: EventLog, ids: readonly string[]): Promise<void> {
  for (const id of ids) {
    await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, [batchCreated(), batchValidated(10)]));
  }
}

/** Waits until readers see all events, which transactions of other tests on the same server delay. */
export const untilClosed = async (db: Kysely<Database>): Promise<unknown> =>
  await eventually(
    () => closedLagSeconds(db),
    (seconds) => seconds === 0,
  );
