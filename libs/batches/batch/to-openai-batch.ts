import { toDollars } from '#libs/prices/to-dollars.ts';
import { toUnixSeconds } from '#libs/kernel/clock.ts';
import type { OutputChecks } from './batch.ts';
import type { BatchRow } from './batch-model.ts';
import { readBounds } from './bounds.ts';

/** The public batch object: every key is present, null where unset (BATCH-1). Times are Unix seconds. */
export function toOpenAiBatch(batch: BatchRow) {
  const { usage } = batch;
  return {
    id: batch.id,
    object: 'batch' as const,
    endpoint: batch.endpoint,
    model: batch.model,
    errors: batch.errors && { object: 'list' as const, data: batch.errors },
    input_file_id: batch.input_file_id,
    completion_window: batch.completion_window,
    status: shownStatus(batch),
    output_file_id: batch.output_file_id,
    error_file_id: batch.error_file_id,
    created_at: toUnixSeconds(batch.created_at),
    in_progress_at: toUnixSeconds(batch.in_progress_at),
    expires_at: toUnixSeconds(batch.expires_at),
    finalizing_at: toUnixSeconds(batch.finalizing_at),
    completed_at: toUnixSeconds(batch.completed_at),
    failed_at: toUnixSeconds(batch.failed_at),
    expired_at: toUnixSeconds(batch.expired_at),
    cancelling_at: toUnixSeconds(batch.cancelling_at),
    cancelled_at: toUnixSeconds(batch.cancelled_at),
    request_counts: { total: batch.total, completed: batch.completed, failed: batch.failed },
    usage: {
      input_tokens: usage.input_tokens,
      input_tokens_details: { cached_tokens: usage.cached_tokens },
      output_tokens: usage.output_tokens,
      output_tokens_details: { reasoning_tokens: usage.reasoning_tokens },
      total_tokens: usage.input_tokens + usage.output_tokens,
    },
    cost_usd: usage.cost === undefined ? null : toDollars(usage.cost),
    unpriced_lines: usage.unpriced_lines ?? 0,
    validated_outputs: batch.output_checks && describeChecks(batch.output_checks),
    paused_at: toUnixSeconds(batch.paused_at),
    bounds: readBounds(batch),
    retry_of: (batch.gateway_options['retry_of'] as string | undefined) ?? null,
    metadata: batch.metadata,
  };
}

const describeChecks = ({ passed, passed_after_retry, failed }: OutputChecks) => ({
  checked: passed + passed_after_retry + failed,
  passed_on_first_call: passed,
  passed_after_retry,
  failed,
});

/** A cancelled batch is shown as `cancelling` until its files exist, although internally it is `finalizing` at the end. */
function shownStatus({ status, finalizing_reason: reason }: BatchRow): BatchRow['status'] {
  return status === 'finalizing' && reason === 'cancelled' ? 'cancelling' : status;
}

export type OpenAiBatch = ReturnType<typeof toOpenAiBatch>;
