import type { Selectable } from 'kysely';
import type { BatchTable } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { InlineModel, StreamRow } from '#libs/event-log/inline-model.ts';
import { addDecimals } from '#libs/prices/add-decimals.ts';
import { assertNever } from '#libs/kernel/errors.ts';
import type { BatchEvent, OutputChecks } from './batch.ts';
import { withBounds } from './bounds.ts';

export type BatchRow = Selectable<BatchTable>;
type Columns = Omit<BatchRow, keyof StreamRow>;

/** The read model of GET /v1/batches, and the state on which commands are decided. */
export const batchModel: InlineModel<BatchRow, BatchEvent> = {
  name: 'batch',
  jsonColumns: ['metadata', 'target', 'gateway_options', 'headers', 'errors', 'usage', 'output_checks'],
  unread: { 'batch.lines_settled': ['chunks', 'results_root'] },
  evolve,
};

function evolve(row: BatchRow | undefined, event: RecordedEvent<BatchEvent>): Columns {
  if (event.type === 'batch.created') return created(event);
  if (!row) throw new Error(`batch ${event.streamId} begins with ${event.type}`);
  const at = event.recordedAt;
  switch (event.type) {
    case 'batch.validated': {
      const { line_count: total, chunk_count, model, pinned_prompts } = event.data;
      const gateway_options = pinned_prompts ? { ...row.gateway_options, pinned_prompts } : row.gateway_options;
      return { ...row, gateway_options, status: 'in_progress', in_progress_at: at, total, chunk_count, model };
    }
    case 'batch.lines_settled': {
      const { completed, failed, usage, outputs, repeated } = event.data;
      const sums = { ...row.usage };
      if (repeated !== undefined) {
        sums.repeated_calls = (sums.repeated_calls ?? 0) + repeated.calls;
        if (repeated.cost !== null) sums.repeated_cost = addDecimals(sums.repeated_cost ?? null, repeated.cost);
      }
      for (const part of usage) {
        sums.input_tokens += part.input_tokens;
        sums.cached_tokens += part.cached_tokens;
        sums.output_tokens += part.output_tokens;
        sums.reasoning_tokens += part.reasoning_tokens;
        if (part.cost !== null) sums.cost = addDecimals(sums.cost ?? null, part.cost);
        if (part.unpriced_lines !== undefined) sums.unpriced_lines = (sums.unpriced_lines ?? 0) + part.unpriced_lines;
      }
      const output_checks = outputs ? addChecks(row.output_checks ?? noChecks, outputs) : row.output_checks;
      return { ...row, completed: row.completed + completed, failed: row.failed + failed, usage: sums, output_checks };
    }
    case 'batch.chunk_redelivered':
      return row;
    case 'batch.paused':
      return { ...row, paused_at: at, bound_reached: event.data.bound ?? null };
    case 'batch.resumed': {
      const gateway_options = withBounds(row.gateway_options, event.data);
      return { ...row, gateway_options, paused_at: null, bound_reached: null };
    }
    case 'batch.cancel_requested': {
      const bound_reached = event.data.bound ?? row.bound_reached;
      return { ...row, status: 'cancelling', cancelling_at: at, paused_at: null, bound_reached };
    }
    case 'batch.finalizing': {
      const { reason: finalizing_reason } = event.data;
      return { ...row, status: 'finalizing', finalizing_at: at, finalizing_reason, paused_at: null };
    }
    case 'batch.completed':
      return { ...row, ...files(event.data), status: 'completed', completed_at: at };
    case 'batch.cancelled':
      return { ...row, ...files(event.data), status: 'cancelled', cancelled_at: at };
    case 'batch.expired':
      return { ...row, ...files(event.data), status: 'expired', expired_at: at, paused_at: null };
    case 'batch.failed':
      return { ...row, errors: event.data.errors, status: 'failed', failed_at: at, paused_at: null };
    default:
      return assertNever(event);
  }
}

const noChecks: OutputChecks = { passed: 0, passed_after_retry: 0, failed: 0 };

const addChecks = (one: OutputChecks, other: OutputChecks): OutputChecks => ({
  passed: one.passed + other.passed,
  passed_after_retry: one.passed_after_retry + other.passed_after_retry,
  failed: one.failed + other.failed,
});

const files = (outcome: { output_file_id: string | null; error_file_id: string | null }) => ({
  output_file_id: outcome.output_file_id,
  error_file_id: outcome.error_file_id,
});

function created({ data, recordedAt }: RecordedEvent<Extract<BatchEvent, { type: 'batch.created' }>>): Columns {
  return {
    endpoint: data.endpoint,
    completion_window: data.completion_window,
    input_file_id: data.input_file_id,
    metadata: data.metadata,
    target: data.target,
    gateway_options: data.gateway_options,
    headers: data.headers,
    output_expires_after_seconds: data.output_expires_after?.seconds ?? null,
    status: 'validating',
    finalizing_reason: null,
    errors: null,
    model: null,
    chunk_count: 0,
    total: 0,
    completed: 0,
    failed: 0,
    usage: { input_tokens: 0, cached_tokens: 0, output_tokens: 0, reasoning_tokens: 0 },
    output_checks: data.gateway_options['validate_outputs'] === undefined ? null : noChecks,
    paused_at: null,
    bound_reached: null,
    output_file_id: null,
    error_file_id: null,
    created_at: recordedAt,
    expires_at: new Date(data.expires_at),
    in_progress_at: null,
    finalizing_at: null,
    completed_at: null,
    failed_at: null,
    expired_at: null,
    cancelling_at: null,
    cancelled_at: null,
  };
}
