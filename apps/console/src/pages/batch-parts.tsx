import { queryOptions } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import { answerOf, api } from '../api/client.ts';
import type { Batch } from '../api/types.ts';
import { count, duration } from '../format.ts';
import { Badge, Progress, type Tone } from '../parts/basics.tsx';

export const batchesQuery = queryOptions({
  queryKey: ['batch', 'list'],
  queryFn: () => answerOf(api.GET('/v1/batches', { params: { query: { limit: 100 } } })),
});

export const batchQuery = (id: string) =>
  queryOptions({
    queryKey: ['batch', id],
    queryFn: () => answerOf(api.GET('/v1/batches/{batch_id}', { params: { path: { batch_id: id } } })),
  });

const tones: Readonly<Record<Batch['status'], Tone>> = {
  validating: 'info',
  in_progress: 'info',
  finalizing: 'info',
  completed: 'good',
  failed: 'bad',
  expired: 'bad',
  cancelling: 'warn',
  cancelled: 'warn',
};

export const StatusBadge = ({ status, isPaused = false }: { status: Batch['status']; isPaused?: boolean }) => (
  <Badge tone={isPaused ? 'warn' : tones[status]}>{isPaused ? 'paused' : status.replace('_', ' ')}</Badge>
);

/** Whether the batch can still change. */
export const isOpenBatch = ({ status }: Batch): boolean =>
  !['completed', 'failed', 'expired', 'cancelled'].includes(status);

/** When a batch ended, in ms; null while it is open. */
export function endOf(batch: Batch): number | null {
  const at = batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at;
  return at === null ? null : at * 1_000;
}

/** The lines settled so far, as a bar and as numbers. */
export function LinesProgress({ batch }: { batch: Batch }) {
  const { total, completed, failed } = batch.request_counts;
  if (total === 0) {
    const why = batch.status === 'failed' ? 'the file was rejected, so no line was called' : 'no line was called';
    return <span className="muted small">{batch.status === 'validating' ? 'reading the file' : why}</span>;
  }
  const label = `${count(completed + failed)} of ${count(total)} lines, ${count(failed)} failed`;
  return (
    <div>
      <Progress done={completed} failed={failed} total={total} label={label} />
      <span className="small muted">{label}</span>
    </div>
  );
}

export type Pace = { linesPerSecond: number; leftMs: number | null };

/** The time over which the pace of a running batch is measured. */
const windowMs = 15_000;

/** The pace of a batch, computed from the counts that this page has seen; null until there are two of them. */
export function usePace(batch: Batch | undefined): Pace | null {
  const [seen, setSeen] = useState<{ atMs: number; done: number }[]>([]);
  const { total = 0, completed = 0, failed = 0 } = batch?.request_counts ?? {};
  const done = completed + failed;
  const isRunning = batch?.status === 'in_progress';
  useEffect(() => {
    const atMs = performance.now();
    setSeen((before) => [...before.filter((each) => atMs - each.atMs < windowMs), { atMs, done }]);
  }, [done]);
  const [first, last] = [seen[0], seen.at(-1)];
  if (!isRunning || first === undefined || last === undefined || last.atMs - first.atMs < 900) return null;
  const linesPerSecond = (last.done - first.done) / ((last.atMs - first.atMs) / 1_000);
  return { linesPerSecond, leftMs: linesPerSecond > 0 ? ((total - done) / linesPerSecond) * 1_000 : null };
}

export const paceText = ({ linesPerSecond, leftMs }: Pace): string =>
  `${count(linesPerSecond)} lines/s${leftMs === null ? '' : `, ${duration(leftMs)} left`}`;
