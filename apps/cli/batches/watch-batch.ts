import { setTimeout as wait } from 'node:timers/promises';
import { ApiError, UnreachableError } from '../server/cli-error.ts';
import { readPieces, type Client } from '../server/http-client.ts';
import { barOf, createProgressLine } from '../terminal/progress-line.ts';
import { formatCost, formatDuration, formatTime, usesSimulator } from '../terminal/quantities.ts';

/** The members of a batch that the commands read. */
export type Batch = {
  id: string;
  endpoint: string;
  status: string;
  input_file_id: string;
  output_file_id: string | null;
  error_file_id: string | null;
  created_at: number;
  in_progress_at: number | null;
  expires_at: number | null;
  request_counts: { total: number; completed: number; failed: number };
  /** US dollars. */
  cost_usd: string | null;
  unpriced_lines: number;
  validated_outputs: {
    checked: number;
    passed_on_first_call: number;
    passed_after_retry: number;
    failed: number;
  } | null;
  errors: { data: { code: string; message: string; line: number | null }[] } | null;
  /** Only present when the batch was read on its own, not in a list. */
  waits?: { reason: string; message: string; lines: number | null; until: number | null }[];
  gateway?: {
    eta: string | null;
    lines_per_second: number | null;
    calls_in_flight: number;
    repeated_calls: number;
    repeated_cost_usd: string | null;
  };
  paused_at?: number | null;
  bounds?: {
    max_cost: string | null;
    max_error_rate: number | null;
    max_error_rate_after: number;
    on_bound: string;
    reached: string | null;
  } | null;
  model?: string | null;
  completion_window?: string;
  usage?: { input_tokens: number; output_tokens: number; total_tokens: number } | null;
  completed_at?: number | null;
  failed_at?: number | null;
  expired_at?: number | null;
  cancelled_at?: number | null;
  retry_of?: string | null;
  metadata?: object | null;
};

type BatchWait = Required<Batch>['waits'][number];

const ended: ReadonlySet<string> = new Set(['completed', 'failed', 'expired', 'cancelled']);
export const hasEnded = ({ status }: Batch): boolean => ended.has(status);

export const readBatch = async (client: Client, id: string, signal?: AbortSignal): Promise<Batch> =>
  await client.json<Batch>('GET', `/v1/batches/${encodeURIComponent(id)}`, { signal });

const pollMinMs = 500;
const pollMaxMs = 5_000;
/** The batch is read at most this often, no matter how many events arrive. */
const readEveryMs = 500;
/** The command gives up if the server does not answer for this long. */
const unavailableMaxMs = 300_000;
const retryEveryMs = 3_000;
/** An interrupted event stream is reopened after this long. */
const reopenMs = 5_000;

/**
 * Shows the progress of a batch on stderr until it has ended, and then returns it. An event from the server causes the batch
 * to be read again; if the key cannot read events (`audit.read`), the batch is polled at growing intervals. Rejects with the
 * reason of `signal`.
 */
export async function watchBatch(client: Client, id: string, signal: AbortSignal): Promise<Batch> {
  // If the server is unavailable at the start, its address is probably wrong.
  await readBatch(client, id, signal);
  const line = createProgressLine();
  const stop = new AbortController();
  const alarm = wakeOnEvents(client, id, AbortSignal.any([signal, stop.signal]));
  const news = createWaitNews();
  let pollMs = pollMinMs;
  let seen = '';
  try {
    for (;;) {
      const batch = await readPatiently(client, id, signal, (text) => line.show(text));
      for (const sentence of news(batch, performance.now())) line.say(sentence);
      line.show(describeProgress(batch));
      if (hasEnded(batch)) return batch;
      const state = JSON.stringify([batch.status, batch.request_counts]);
      pollMs = state === seen ? Math.min(pollMs * 1.5, pollMaxMs) : pollMinMs;
      seen = state;
      await wait(readEveryMs, undefined, { signal });
      await alarm.within(alarm.isOpen() ? pollMaxMs : pollMs - readEveryMs, signal);
    }
  } finally {
    line.clear();
    stop.abort();
  }
}

/** Shorter waits are not reported. */
const sayAfterMs = 4_000;
/** A recurring cause is reported again after this long. */
const repeatWaitMs = 60_000;

/** Returns the sentences about waits that have lasted for a while and were not reported before. */
function createWaitNews(): (batch: Batch, nowMs: number) => string[] {
  const lastSaid = new Map<string, number>();
  let since = new Map<string, number>();
  return (batch, nowMs) => {
    const waits = (batch.waits ?? []).map((wait) => ({ wait, cause: causeOf(wait) }));
    since = new Map(waits.map(({ cause }) => [cause, since.get(cause) ?? nowMs]));
    const sentences: string[] = [];
    for (const { wait, cause } of waits) {
      const sinceMs = since.get(cause) ?? nowMs;
      const saidMs = lastSaid.get(cause) ?? -Infinity;
      if (wait.reason !== 'paused' && nowMs - sinceMs < sayAfterMs) continue;
      if (saidMs >= sinceMs || nowMs - saidMs < repeatWaitMs) continue;
      lastSaid.set(cause, nowMs);
      sentences.push(describeWait(batch, wait));
    }
    return sentences;
  };
}

/** Excludes the number of lines, because it changes all the time. */
const causeOf = ({ reason, message }: BatchWait): string => `${reason} ${message.replace(/^\d+ lines? /, '')}`;

/** Describes why lines wait, when they will be called next, and when the batch expires, in one sentence each. */
export function describeWait({ id, expires_at: end }: Batch, { reason, message, until }: BatchWait): string {
  return [
    message,
    ...(until === null ? [] : [`Next attempt: ${formatTime(until, { seconds: true })}.`]),
    ...(end === null ? [] : [`The batch expires: ${formatTime(end, { seconds: true })}.`]),
    ...(reason === 'paused' ? [`To continue: sluice batch resume ${id}`] : []),
  ].join(' ');
}

/** Waits for a server that restarts; the batch itself does not depend on this process. */
async function readPatiently(
  client: Client,
  id: string,
  signal: AbortSignal,
  show: (text: string) => void,
): Promise<Batch> {
  const deadlineMs = performance.now() + unavailableMaxMs;
  for (;;) {
    try {
      return await readBatch(client, id, signal);
    } catch (error) {
      const isUnavailable = error instanceof UnreachableError || (error instanceof ApiError && error.status >= 500);
      if (!isUnavailable || signal.aborted) throw error;
      if (performance.now() > deadlineMs) {
        throw new UnreachableError(`${error.message} Gave up after ${formatDuration(unavailableMaxMs / 1_000)}.`, {
          hint: `The batch continues when the server is available again. To resume watching: sluice batch watch ${id}`,
          cause: error,
        });
      }
      show(`${error.message} Retrying.`);
      await wait(retryEveryMs, undefined, { signal });
    }
  }
}

export const formatRate = (rate: number): string => `${rate.toFixed(rate < 10 ? 1 : 0)}/s`;

function describeProgress(batch: Batch): string {
  const { total, completed, failed } = batch.request_counts;
  const done = completed + failed;
  const left = total - done;
  const { lines_per_second: rate = null, calls_in_flight: calls = 0 } = batch.gateway ?? {};
  const waiting = (batch.waits ?? []).reduce((sum, { lines }) => sum + (lines ?? 0), 0);
  const facts = [
    ...(total === 0 ? [] : [`${done}/${total} lines`]),
    ...(rate ? [formatRate(rate)] : []),
    // Independent of the clock of this computer.
    ...(rate && batch.gateway?.eta ? [`ETA ${formatDuration(left / rate)}`] : []),
    ...(calls === 0 ? [] : [`${calls} running`]),
    ...(failed === 0 ? [] : [`${failed} failed`]),
    ...(batch.cost_usd === null ? [] : [formatCost(batch.cost_usd, usesSimulator(batch.model))]),
    ...(batch.paused_at ? ['paused'] : []),
    ...(waiting === 0 ? [] : [`${waiting} waiting`]),
  ];
  return barOf(done, total) + [...(batch.status === 'in_progress' ? [] : [batch.status]), ...facts].join('  ');
}

/** Wakes on each event of the batch. `isOpen` shows whether the event stream is open. */
function wakeOnEvents(client: Client, id: string, signal: AbortSignal) {
  let isOpen = false;
  let isPending = false;
  let wake = (): void => undefined;
  const heard = (): void => {
    isPending = true;
    wake();
  };
  const listen = async (): Promise<void> => {
    const { createParser } = await import('eventsource-parser');
    for (;;) {
      try {
        const response = await client.open('GET', '/v1/events/stream', { query: { stream: id }, signal });
        const parser = createParser({ onEvent: heard, maxBufferSize: 16 * 1_048_576 });
        const decoder = new TextDecoder();
        isOpen = true;
        for await (const piece of readPieces(response, client.server))
          parser.feed(decoder.decode(piece, { stream: true }));
      } catch (error) {
        // If the key or the server does not allow the stream, polling is enough. Otherwise the stream is reopened.
        if (signal.aborted || (error instanceof ApiError && error.status < 500 && error.status !== 429)) return;
        if (!(error instanceof ApiError) && !(error instanceof UnreachableError)) return;
      } finally {
        isOpen = false;
      }
      await wait(reopenMs, undefined, { signal }).catch(() => undefined);
    }
  };
  void listen();
  return {
    isOpen: () => isOpen,
    async within(timeoutMs: number, until: AbortSignal): Promise<void> {
      const timeout = wait(Math.max(0, timeoutMs), undefined, { signal: AbortSignal.any([until, signal]) });
      if (!isPending) await Promise.race([timeout, new Promise<void>((resolve) => (wake = resolve))]);
      timeout.catch(() => undefined);
      until.throwIfAborted();
      isPending = false;
    },
  };
}
