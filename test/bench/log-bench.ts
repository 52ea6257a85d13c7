import path from 'node:path';
import { performance } from 'node:perf_hooks';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { newId } from '#libs/kernel/ids.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { readUsage } from './process-usage.ts';
import { startProcess } from './start-process.ts';
import { median } from './statistics.ts';

export type LogFigures = {
  writers: number;
  /** Events per second through `transact`, with one and with 64 events per transaction. */
  appendedSinglyPerSecond: number;
  appendedBy64PerSecond: number;
  replayedEvents: number;
  replayedPerSecond: number;
  replayPeakBytes: number;
};

const writers = 8;
const metadata = { actor: { type: 'system' as const, id: 'bench' } };

/**
 * Appends to a log, with separate streams for each writer, and then lets `sluice check records` fold and compare
 * all of it. Throws when the replay differs from the live rows.
 */
export async function measureLog(
  { connectionString, directory }: { connectionString: string; directory: string },
  size: { singlySeconds: number; events: number; replays: number },
  onProgress: (text: string) => void,
): Promise<LogFigures> {
  const logger = createLogger({ name: 'bench', level: 'error' });
  const pool = createPool({ connectionString, applicationName: 'sluice-bench', max: writers }, logger);
  const db = createDatabase(pool);
  try {
    const eventLog = createEventLog(db);
    /** Every writer continues while `goOn` returns true. Returns events per second. */
    const append = async (eventsPerTransaction: number, goOn: (appended: number, ms: number) => boolean) => {
      const startedMs = performance.now();
      let appended = 0;
      const write = async (): Promise<void> => {
        while (goOn(appended, performance.now() - startedMs)) {
          // A thousand events are those of a batch of 64,000 lines.
          const workspaceId = newId('ws_');
          const id = newId('batch_');
          for (let version = 0; version < 1_000 && goOn(appended, performance.now() - startedMs);) {
            const events = Array.from({ length: eventsPerTransaction }, (_value, index) => eventOf(version + index));
            await eventLog.transact({ workspaceId, streams: [id], metadata }, (unit) =>
              unit.append(batchModel, id, events),
            );
            version += events.length;
            appended += events.length;
          }
        }
      };
      await Promise.all(Array.from({ length: writers }, write));
      return appended / ((performance.now() - startedMs) / 1_000);
    };
    await append(1, (_appended, ms) => ms < 1_000); // warms up
    onProgress('log: events one by one');
    const appendedSinglyPerSecond = await append(1, (_appended, ms) => ms < size.singlySeconds * 1_000);
    onProgress('log: 64 events a transaction');
    const appendedBy64PerSecond = await append(64, (appended) => appended < size.events);
    await pool.query('vacuum analyze event');

    const speeds: number[] = [];
    const peaks: number[] = [];
    let replayedEvents = 0;
    for (let replay = 0; replay < size.replays; replay += 1) {
      onProgress(`log: replay ${replay + 1} of ${size.replays}`);
      const { events, durationMs, peakBytes } = await runReplay(connectionString, directory);
      replayedEvents = events;
      speeds.push(events / (durationMs / 1_000));
      peaks.push(peakBytes);
    }
    return {
      writers,
      appendedSinglyPerSecond,
      appendedBy64PerSecond,
      replayedEvents,
      replayedPerSecond: median(speeds),
      replayPeakBytes: Math.max(...peaks),
    };
  } finally {
    await db.destroy();
  }
}

async function runReplay(
  connectionString: string,
  directory: string,
): Promise<{ events: number; durationMs: number; peakBytes: number }> {
  const replay = await startProcess({
    name: 'sluice check records',
    script: 'apps/cli/main.ts',
    args: ['check', 'records', '--json'],
    environment: { DATABASE_URL: connectionString },
    logFile: path.join(directory, 'replay.log'),
  });
  let peakBytes = 0;
  const sampler = setInterval(() => {
    void readUsage(replay.pid).then(
      ({ residentPeakBytes }) => {
        if (residentPeakBytes > peakBytes) peakBytes = residentPeakBytes; // NaN of a process that has just ended
      },
      () => {},
    );
  }, 10);
  try {
    const [text] = await replay.waitForLog(/^\{"check":.*\}$/m);
    const report = JSON.parse(text) as { ok: boolean; counts: { events: number }; duration_ms: number };
    if (!report.ok) throw new Error(`the replay differs: ${text}`);
    return { events: report.counts.events, durationMs: report.duration_ms, peakBytes };
  } finally {
    clearInterval(sampler);
    await replay.stop();
  }
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
