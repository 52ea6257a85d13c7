import path from 'node:path';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { appendEvents } from './append-events.ts';
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
    const append = (eventsPerTransaction: number, goOn: (appended: number, ms: number) => boolean) =>
      appendEvents(eventLog, { writers, eventsPerTransaction, goOn });
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
      const { events, durationMs, peakBytes } = await checkRecords(connectionString, directory);
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

/** Lets `sluice check records` compare all rows with the log, or also repair them. Throws if rows differ and it does not repair them. */
export async function checkRecords(
  connectionString: string,
  directory: string,
  flags: readonly '--repair'[] = [],
): Promise<{ events: number; durationMs: number; peakBytes: number }> {
  const replay = await startProcess({
    name: 'sluice check records',
    script: 'apps/cli/main.ts',
    args: ['check', 'records', '--json', ...flags],
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
