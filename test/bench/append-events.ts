import { performance } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { newId } from '#libs/kernel/ids.ts';

export const metadata = { actor: { type: 'system' as const, id: 'bench' } };

type Appending = {
  writers: number;
  eventsPerTransaction: number;
  /** Called before each transaction; a writer ends when it returns false. */
  goOn: (appended: number, ms: number) => boolean;
  /** All writers together. Without it they append as fast as they can. */
  perSecond?: number;
  /** Without it, each stream gets its own. */
  workspaceId?: string;
};

/** The events of one stream: those of a batch of 64,000 lines. */
export const streamEvents = 1_000;

/** Appends events of batches, each writer to its own streams. Returns events per second. */
export async function appendEvents(
  eventLog: EventLog,
  { writers, eventsPerTransaction, goOn, perSecond = Infinity, workspaceId }: Appending,
): Promise<number> {
  const startedMs = performance.now();
  let [begun, appended] = [0, 0];
  const mayGoOn = (): boolean => goOn(appended, performance.now() - startedMs);
  const waitForTurn = async (): Promise<void> => {
    const waitMs = startedMs + (begun / perSecond) * 1_000 - performance.now();
    begun += eventsPerTransaction;
    if (waitMs > 0) await delay(waitMs);
  };
  const write = async (): Promise<void> => {
    while (mayGoOn()) {
      const id = newId('batch_');
      const command = { workspaceId: workspaceId ?? newId('ws_'), streams: [id], metadata };
      for (let version = 0; version < streamEvents && mayGoOn();) {
        const events = Array.from({ length: eventsPerTransaction }, (_value, index) => eventOf(version + index));
        await waitForTurn();
        await eventLog.transact(command, (unit) => unit.append(batchModel, id, events));
        version += events.length;
        appended += events.length;
      }
    }
  };
  await Promise.all(Array.from({ length: writers }, write));
  return appended / ((performance.now() - startedMs) / 1_000);
}

/** The events of a batch: created, validated, and then settled group by group. */
function eventOf(version: number): BatchEvent {
  if (version === 0) {
    return {
      type: 'batch.created',
      data: {
        input_file_id: 'file-bench',
        endpoint: '/v1/chat/completions',
        completion_window: '24h',
        metadata: null,
        expires_at: '2100-01-01T00:00:00.000Z',
        output_expires_after: null,
        target: { type: 'none' },
        gateway_options: {},
        headers: {},
      },
    };
  }
  if (version === 1) return { type: 'batch.validated', data: { line_count: 65_536, chunk_count: 256, model: null } };
  const first = (version - 2) * 64 + 1;
  return {
    type: 'batch.lines_settled',
    data: {
      chunks: [{ chunk: Math.floor(first / 250), first_line: first, settled: '//////////8=' }],
      completed: 64,
      failed: 0,
      usage: [
        {
          provider: 'openai',
          model: 'sim-small',
          input_tokens: 6_400,
          cached_tokens: 0,
          output_tokens: 3_200,
          reasoning_tokens: 0,
          cost: null,
          price_version: null,
        },
      ],
      results_root: String(first).padStart(64, '0'),
    },
  };
}
