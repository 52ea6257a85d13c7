import { exitCodes } from '../server/cli-error.ts';
import { formatCost, formatCount, formatDollars, usesSimulator, formatTime } from '../terminal/quantities.ts';
import type { Column } from '../terminal/table.ts';
import { describeWait, formatRate, hasEnded, type Batch } from './watch-batch.ts';

/** The columns of a list of batches. */
export const batchColumns: readonly Column<Batch>[] = [
  ['id', ({ id }) => id],
  ['status', httpStatus],
  ['lines', ({ request_counts: { completed, failed, total } }) => `${completed + failed}/${total}`, { right: true }],
  ['failed', ({ request_counts: { failed } }) => failed],
  ['cost', ({ cost_usd: usd, model }) => formatCost(usd, usesSimulator(model)), { right: true, spare: 3 }],
  ['created', ({ created_at: at }) => formatTime(at), { spare: 2 }],
  ['endpoint', ({ endpoint }) => endpoint, { spare: 1 }],
];

function httpStatus({ status, paused_at: paused }: Batch): string {
  return paused ? 'paused' : status;
}

/** The members of a batch that matter to people, without empty ones. */
export function summarise(batch: Batch): Record<string, unknown> {
  const { completed, failed, total } = batch.request_counts;
  const { usage, waits = [], gateway } = batch;
  const endedAt = batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at;
  const time = (at: number | null | undefined): string | null => (at ? formatTime(at, { seconds: true }) : null);
  const members = {
    id: batch.id,
    status: httpStatus(batch),
    waiting: waits.length === 0 ? null : waits.map((wait) => describeWait(batch, wait)),
    lines: `${total}: ${completed} answered, ${failed} failed`,
    rate: gateway?.lines_per_second ? formatRate(gateway.lines_per_second) : null,
    running: gateway?.calls_in_flight ? formatCount(gateway.calls_in_flight, 'call') : null,
    eta: gateway?.eta ? formatTime(gateway.eta, { seconds: true }) : null,
    'matched schema': batch.validated_outputs && describeOutputs(batch.validated_outputs),
    cost: batch.cost_usd === null ? null : describeCost(batch),
    repeated: gateway?.repeated_calls ? describeRepeated(gateway, batch) : null,
    tokens: usage ? `${usage.total_tokens}: ${usage.input_tokens} in, ${usage.output_tokens} out` : null,
    bounds: batch.bounds ? describeBounds(batch.bounds) : null,
    endpoint: batch.endpoint,
    model: batch.model,
    window: batch.completion_window,
    created: time(batch.created_at),
    started: time(batch.in_progress_at),
    ended: time(endedAt),
    expires: hasEnded(batch) ? null : time(batch.expires_at),
    input: batch.input_file_id,
    output: batch.output_file_id,
    errors: batch.error_file_id,
    'retry of': batch.retry_of,
    metadata: batch.metadata,
  };
  return Object.fromEntries(Object.entries(members).filter(([, member]) => member !== null && member !== undefined));
}

function describeBounds(bounds: NonNullable<Batch['bounds']>): string {
  const { max_cost: cost, max_error_rate: rate, max_error_rate_after: after, on_bound: action, reached } = bounds;
  const reachedText = (name: string): string => (reached === name ? ' (reached)' : '');
  const parts = [
    ...(cost === null ? [] : [`at most ${formatDollars(cost)}${reachedText('max_cost')}`]),
    ...(rate === null
      ? []
      : [`at most ${rate} failed after ${formatCount(after, 'line')}${reachedText('max_error_rate')}`]),
  ];
  return `${parts.join(', ')}; otherwise ${action}`;
}

function describeRepeated(
  { repeated_calls: calls, repeated_cost_usd: usd }: NonNullable<Batch['gateway']>,
  { model }: Batch,
): string {
  const cost = usd === null ? '' : `, ${formatCost(usd, usesSimulator(model))}`;
  return `up to ${formatCount(calls, 'call')}${cost}, after a worker died or stopped`;
}

function describeCost({ cost_usd: usd, unpriced_lines: unpriced, model }: Batch): string {
  const cost = formatCost(usd, usesSimulator(model));
  return `${cost}${unpriced === 0 ? '' : `, plus ${formatCount(unpriced, 'line')} without a known price`}`;
}

const describeOutputs = ({
  checked,
  passed_on_first_call: first,
  passed_after_retry: later,
}: NonNullable<Batch['validated_outputs']>): string =>
  `${first + later} of ${formatCount(checked, 'line')}, ${later} of them after a retry`;

const problemsShown = 20;

/** How a batch ended: a summary, followed by the reasons why the server rejected it. */
export function describeEnd(batch: Batch): string[] {
  const { completed, failed, total } = batch.request_counts;
  const cost = batch.cost_usd === null ? '' : `, ${describeCost(batch)}`;
  const problems = batch.errors?.data ?? [];
  const more = problems.length - problemsShown;
  return [
    total === 0
      ? `${batch.id}: ${batch.status}${cost}`
      : `${batch.id}: ${batch.status}, ${completed} of ${formatCount(total, 'line')} answered, ${failed} failed${cost}`,
    ...problems
      .slice(0, problemsShown)
      .map(({ line, message }) => `  ${line === null ? '' : `line ${line}: `}${message}`),
    ...(more > 0 ? [`  ${more} more. To see all: sluice batch get ${batch.id} --json`] : []),
  ];
}

/** Returns the exit code for a batch that has ended. */
export function exitCodeFor(batch: Batch): number {
  if (batch.status !== 'completed') return exitCodes.notCompleted;
  return batch.request_counts.failed > 0 ? exitCodes.failedLines : 0;
}
