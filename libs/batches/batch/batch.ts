import type { BatchError, BatchStatus, BatchTarget } from '#libs/database/schema.ts';
import type { BoundName } from '#libs/contracts/batches/batches.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { SettledBits } from '../chunks/settled-lines.ts';
import { exceedsErrorRate, readBounds, requireRaised, type NewBounds } from './bounds.ts';

/** Why a batch stopped taking results. It is also the name of the terminal status that follows. */
export type FinalizingReason = 'completed' | 'cancelled' | 'expired';

/** Tokens and cost of settled lines, summed by provider, model and prices. */
export type SettledUsage = {
  provider: string;
  model: string | null;
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  reasoning_tokens: number;
  /** US cents as a decimal, of all attempts; null: not known. */
  cost: string | null;
  price_version: string | null;
  /** How many lines have a cost that is not known. Absent: none. */
  unpriced_lines?: number;
};

/**
 * Lines that a process possibly called before it died, hung or was stopped. Each counts once, when it is settled. `cost`:
 * US cents as a decimal for the calls that were settled; null: none is known.
 */
export type RepeatedCalls = { calls: number; cost: string | null };

/** How many lines had answers that matched their JSON Schema. Lines whose answers were not checked are not counted. */
export type OutputChecks = { passed: number; passed_after_retry: number; failed: number };

/** The result of a batch that has ended. A file without lines is not written, and its id is null. */
export type BatchOutcome = {
  output_file_id: string | null;
  output_sha256: string | null;
  error_file_id: string | null;
  error_sha256: string | null;
  total: number;
  completed: number;
  failed: number;
};

/** The IDs of the versions of prompts and partials that a batch's lines use, by the names in the lines. */
export type PinnedPrompts = { prompts: Record<string, string>; partials: Record<string, string> };

// These shapes are stored in the event log and must stay readable: a change needs a new schema version with an upcast.
export type BatchEvent =
  | {
      type: 'batch.created';
      data: {
        input_file_id: string;
        endpoint: string;
        completion_window: string;
        metadata: Record<string, unknown> | null;
        /** ISO 8601 with milliseconds. */
        expires_at: string;
        output_expires_after: { anchor: 'created_at'; seconds: number } | null;
        target: BatchTarget;
        gateway_options: Record<string, unknown>;
        /**
         * The headers that the lines inherit from the create call: its tracing headers, and the IDs of its API key and
         * its user.
         */
        headers: Record<string, string>;
      };
    }
  | {
      type: 'batch.validated';
      data: {
        line_count: number;
        chunk_count: number;
        model: string | null;
        /** The RFC 6962 root (hex) over the bytes of the requests, without their line feeds. Absent: not computed. */
        input_root?: string;
        pinned_prompts?: PinnedPrompts;
      };
    }
  | {
      type: 'batch.lines_settled';
      data: {
        /** Which lines of each chunk: base64 of one bit per line from `first_line` on, the highest bit first. */
        chunks: ({ chunk: number } & SettledBits)[];
        completed: number;
        failed: number;
        usage: SettledUsage[];
        /** Absent: none of the answers was checked against a JSON Schema. */
        outputs?: OutputChecks;
        /** RFC 6962 root, hex, in line order over leaves uint64be(line) ‖ sha256(line bytes). */
        results_root: string;
        /** Absent: none of these lines. */
        repeated?: RepeatedCalls;
      };
    }
  /** A claim was lost because a worker crashed or stopped. Lines without a result can be called again. */
  | { type: 'batch.chunk_redelivered'; data: { chunk: number; attempt: number; unsettled: number } }
  /** No line is started after this event, until `batch.resumed`. The deadline does not change. */
  | { type: 'batch.paused'; data: { bound?: BoundName } }
  | { type: 'batch.resumed'; data: NewBounds }
  | { type: 'batch.cancel_requested'; data: { bound?: BoundName } }
  | { type: 'batch.finalizing'; data: { reason: FinalizingReason } }
  | { type: 'batch.completed'; data: BatchOutcome }
  | { type: 'batch.cancelled'; data: BatchOutcome }
  | { type: 'batch.expired'; data: BatchOutcome }
  | { type: 'batch.failed'; data: { errors: BatchError[] } };

/** The state on which decisions are based. The read-model row has all of it. */
export type BatchState = {
  status: BatchStatus;
  expires_at: Date;
  cancelling_at: Date | null;
  in_progress_at: Date | null;
  paused_at: Date | null;
  finalizing_reason: FinalizingReason | null;
  total: number;
  completed: number;
  failed: number;
  gateway_options: Record<string, unknown>;
  bound_reached: BoundName | null;
};

export type BatchCommand =
  | {
      type: 'finish_validation';
      lineCount: number;
      chunkCount: number;
      model: string | null;
      inputRoot?: string | undefined;
      pinnedPrompts?: PinnedPrompts | undefined;
    }
  | { type: 'fail_validation'; errors: BatchError[] }
  | { type: 'settle'; settled: Extract<BatchEvent, { type: 'batch.lines_settled' }>['data'] | null; openChunks: number }
  | { type: 'record_redelivery'; chunk: number; attempt: number; unsettled: number }
  | { type: 'pause' }
  | { type: 'resume'; bounds?: NewBounds }
  | { type: 'cancel' }
  /** What is left of `max` does not cover the next call. */
  | { type: 'reach_max_cost'; max: string }
  /** Sent at the deadline, after a cancel and ten minutes after it: decides whether the batch stops taking results. */
  | { type: 'close'; openChunks: number }
  | { type: 'finish'; outcome: BatchOutcome };

/** How long running lines can take after a cancel (BATCH-6). */
export const cancelGraceMs = 10 * 60_000;

const noLines: BatchOutcome = {
  output_file_id: null,
  output_sha256: null,
  error_file_id: null,
  error_sha256: null,
  total: 0,
  completed: 0,
  failed: 0,
};

/**
 * Returns the events that a command causes at `now` (database clock). Pure. Empty when there is nothing to change, or when
 * the command came too late (a redelivered job, results after the end). Throws GatewayError `conflict` when refused.
 */
export function decideBatch(batch: BatchState, command: BatchCommand, now: Date): BatchEvent[] {
  switch (command.type) {
    case 'finish_validation':
      if (wasCancelledBeforeRunning(batch)) return [{ type: 'batch.cancelled', data: noLines }];
      if (batch.status !== 'validating') return [];
      return [
        {
          type: 'batch.validated',
          data: {
            line_count: command.lineCount,
            chunk_count: command.chunkCount,
            model: command.model,
            ...(command.inputRoot === undefined ? {} : { input_root: command.inputRoot }),
            ...(command.pinnedPrompts ? { pinned_prompts: command.pinnedPrompts } : {}),
          },
        },
      ];
    case 'fail_validation':
      if (wasCancelledBeforeRunning(batch)) return [{ type: 'batch.cancelled', data: noLines }];
      return batch.status === 'validating' ? [{ type: 'batch.failed', data: { errors: command.errors } }] : [];
    case 'settle':
      return acceptsResults(batch) ? decideSettle(batch, command, now) : [];
    case 'record_redelivery': {
      const { type: _type, ...data } = command;
      return acceptsResults(batch) ? [{ type: 'batch.chunk_redelivered', data }] : [];
    }
    case 'pause':
      requirePausable(batch, 'pause');
      return batch.paused_at === null ? [{ type: 'batch.paused', data: {} }] : [];
    case 'resume':
      return decideResume(batch, command.bounds ?? {});
    case 'reach_max_cost': {
      // The bound can have been raised since.
      const isCurrent = canStartLines(batch) && readBounds(batch)?.max_cost === command.max;
      return isCurrent ? [stopAt(batch, 'max_cost')] : [];
    }
    case 'cancel':
      return decideCancel(batch);
    case 'close':
      return decideClose(batch, command.openChunks, now);
    case 'finish':
      return batch.status === 'finalizing'
        ? [{ type: terminalEvents[batch.finalizing_reason ?? 'completed'], data: command.outcome }]
        : [];
  }
}

/**
 * Whether result rows can still be written. Not after `batch.finalizing`, because the files would not match the counts.
 */
export function acceptsResults(batch: Pick<BatchState, 'status' | 'in_progress_at'>): boolean {
  return batch.in_progress_at !== null && (batch.status === 'in_progress' || batch.status === 'cancelling');
}

/** Whether lines of a batch can be started. Not while it is paused. */
export function canStartLines(batch: Pick<BatchState, 'status' | 'paused_at'>): boolean {
  return batch.status === 'in_progress' && batch.paused_at === null;
}

/** False once a validation has succeeded: a second run of it must not end a batch that still has running lines. */
const wasCancelledBeforeRunning = (batch: BatchState): boolean =>
  batch.status === 'cancelling' && batch.in_progress_at === null;

export function isTerminal(status: BatchStatus): boolean {
  return status === 'completed' || status === 'failed' || status === 'cancelled' || status === 'expired';
}

const terminalEvents = {
  completed: 'batch.completed',
  cancelled: 'batch.cancelled',
  expired: 'batch.expired',
} as const satisfies Record<FinalizingReason, BatchEvent['type']>;

function decideSettle(batch: BatchState, command: Extract<BatchCommand, { type: 'settle' }>, now: Date): BatchEvent[] {
  const events: BatchEvent[] = command.settled ? [{ type: 'batch.lines_settled', data: command.settled }] : [];
  const done =
    batch.completed + batch.failed + (command.settled ? command.settled.completed + command.settled.failed : 0);
  // Only the close job decides on the deadline, because it knows whether the clock can be trusted.
  const closes = batch.status === 'cancelling' ? decideClose(batch, command.openChunks, now) : [];
  if (done < batch.total) {
    const isBad = command.settled !== null && exceedsErrorRate(batch, command.settled);
    return [...events, ...closes, ...(isBad ? [stopAt(batch, 'max_error_rate')] : [])];
  }
  const reason = batch.status === 'cancelling' ? 'cancelled' : 'completed';
  return [...events, { type: 'batch.finalizing', data: { reason } }];
}

/** A batch that is still being validated can be paused too. None of its lines is started in that case. */
function requirePausable({ status }: BatchState, command: 'pause' | 'resume'): void {
  if (status === 'validating' || status === 'in_progress') return;
  const message = `Cannot ${command} a batch with status '${status}'. Its status must be 'validating' or 'in_progress'.`;
  throw new GatewayError('conflict', null, message);
}

function decideResume(batch: BatchState, bounds: NewBounds): BatchEvent[] {
  requirePausable(batch, 'resume');
  if (batch.paused_at !== null) {
    requireRaised(batch, bounds);
    return [{ type: 'batch.resumed', data: bounds }];
  }
  if (Object.keys(bounds).length === 0) return [];
  throw new GatewayError('conflict', null, 'The batch is not paused. Pause it before you change its bounds.');
}

/** The end that a bound makes. */
const stopAt = (batch: BatchState, bound: BoundName): BatchEvent => ({
  type: readBounds(batch)?.on_bound === 'cancel' ? 'batch.cancel_requested' : 'batch.paused',
  data: { bound },
});

function decideCancel(batch: BatchState): BatchEvent[] {
  switch (batch.status) {
    case 'validating':
    case 'in_progress':
      return [{ type: 'batch.cancel_requested', data: {} }];
    case 'cancelling':
    case 'cancelled':
      return [];
    case 'finalizing':
      // It is shown as `cancelling`, and cancelling twice succeeds twice.
      if (batch.finalizing_reason === 'cancelled') return [];
      throw notCancellable(batch.status);
    case 'completed':
    case 'failed':
    case 'expired':
      throw notCancellable(batch.status);
  }
}

const notCancellable = (status: BatchStatus): GatewayError =>
  new GatewayError('conflict', null, `Cannot cancel a batch with status '${status}'.`);

function decideClose(batch: BatchState, openChunks: number, now: Date): BatchEvent[] {
  if (batch.status === 'cancelling') {
    const isOver = now.getTime() >= (batch.cancelling_at?.getTime() ?? 0) + cancelGraceMs;
    // Still validating: the validation ends the batch, unless its job was lost.
    if (batch.in_progress_at === null)
      return isOver || now >= batch.expires_at ? [{ type: 'batch.cancelled', data: noLines }] : [];
    return openChunks === 0 || isOver ? [{ type: 'batch.finalizing', data: { reason: 'cancelled' } }] : [];
  }
  if (now < batch.expires_at) return [];
  if (batch.status === 'validating') return [{ type: 'batch.expired', data: noLines }];
  return batch.status === 'in_progress' ? [{ type: 'batch.finalizing', data: { reason: 'expired' } }] : [];
}
