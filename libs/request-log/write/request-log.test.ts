import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import type { Database } from '#libs/database/schema.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { logEntry } from '#test/log-entry.ts';
import type { LogRow } from '../row/log-entry.ts';
import { createRequestLog, type RequestLogDeps } from './request-log.ts';
import { readAllRows } from './sealed-rows.ts';

const noonMs = Date.UTC(2026, 10, 21, 12);

/** A log whose writes are answered by the test, in order. */
function createLog(deps: Partial<RequestLogDeps> = {}) {
  const { logger, lines } = createTestLogger();
  const groups: LogRow[][] = [];
  const answers: { resolve: () => void; reject: (error: Error) => void }[] = [];
  const writeRows = (rows: readonly LogRow[]): Promise<void> => {
    groups.push([...rows]);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    answers.push({ resolve, reject });
    return promise;
  };
  const log = createRequestLog({
    app: 'api',
    db: undefined as unknown as Kysely<Database>,
    pool: undefined as unknown as Pool,
    logger,
    clock: { now: () => noonMs },
    ensurePartition: async () => {},
    retryDelayMs: 1,
    copyRows: (group) => writeRows(group.flatMap(readAllRows)),
    insertRows: ({ rows }) => writeRows(rows),
    writeProcess: async () => {},
    ...deps,
  });
  const record = (count: number): void => {
    for (let index = 0; index < count; index += 1) log.record(logEntry());
  };
  const sizes = (): number[] => groups.map((group) => group.length);
  /** Lets the database accept the insert that is in flight, once there is one. */
  const accept = async (): Promise<void> => {
    await vi.waitFor(() => expect(answers.length).toBeGreaterThan(0));
    answers.shift()?.resolve();
    await vi.advanceTimersByTimeAsync(0);
  };
  return { log, lines, groups, answers, record, sizes, accept };
}

const away = (): Error => Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

describe('groups', () => {
  test('64 rows are written at once, together', async () => {
    const { record, sizes } = createLog();
    record(63);
    await vi.advanceTimersByTimeAsync(0);
    expect(sizes()).toEqual([]);
    record(1);
    await vi.advanceTimersByTimeAsync(0);
    expect(sizes()).toEqual([64]);
  });

  test('fewer are written 250 ms after the first of them', async () => {
    const { record, sizes } = createLog();
    record(1);
    await vi.advanceTimersByTimeAsync(200);
    record(1);
    await vi.advanceTimersByTimeAsync(49);
    expect(sizes()).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    expect(sizes()).toEqual([2]);
  });

  test('while one is on its way, what arrives waits, and goes together up to the bound of a group', async () => {
    const { record, sizes, accept } = createLog({ groupRowsMax: 200 });
    record(64 + 250);
    await vi.advanceTimersByTimeAsync(10_000);
    expect(sizes()).toEqual([64]);
    await accept();
    expect(sizes()).toEqual([64, 192]);
    await accept();
    // 58 rows are too few to be written yet, so their 250 ms run.
    expect(sizes()).toEqual([64, 192]);
    await vi.advanceTimersByTimeAsync(250);
    expect(sizes()).toEqual([64, 192, 58]);
  });

  test('a group that leaves none waiting may take its time, one that leaves some may not', async () => {
    const behind: boolean[] = [];
    const copyRows = async (_group: unknown, isBehind: boolean): Promise<void> => {
      behind.push(isBehind);
      await vi.advanceTimersByTimeAsync(0);
    };
    const { log, record } = createLog({ groupRowsMax: 128, copyRows });
    record(64 + 250); // The first 64 are sent immediately.
    await log.flush();
    expect(behind).toEqual([false, true, false]);
  });

  test('the next is not begun within 50 ms of the one before, unless it is as large as it may be', async () => {
    const { record, sizes, answers } = createLog();
    const advance = async (ms: number): Promise<void> => {
      await vi.advanceTimersByTimeAsync(ms);
      answers.shift()?.resolve();
      await vi.advanceTimersByTimeAsync(0);
    };
    record(64);
    await advance(0);
    record(64);
    await advance(49);
    expect(sizes()).toEqual([64]);
    record(36);
    await advance(1);
    expect(sizes()).toEqual([64, 100]);
    record(511);
    await advance(10);
    expect(sizes()).toEqual([64, 100]);
    record(1);
    await advance(0);
    expect(sizes()).toEqual([64, 100, 512]);
  });

  test('rows are numbered from 1 without a gap, in the order in which they were recorded, under one process id', async () => {
    const { log, record, groups, accept } = createLog();
    record(150);
    await vi.advanceTimersByTimeAsync(0);
    await accept();
    await vi.advanceTimersByTimeAsync(50);
    const written = groups.flat();
    expect(written.map((row) => row.sequence)).toEqual(Array.from({ length: 150 }, (_, index) => index + 1));
    expect(written.map((row) => row.id)).toEqual(written.map((row) => row.id).toSorted());
    expect(log.processId).toMatch(/^[0-9a-f-]{36}$/);
  });
});

describe('flush', () => {
  test('does not wait for the group to fill, and resolves when the rows are in the database', async () => {
    const { log, record, sizes, accept } = createLog();
    record(3);
    let flushed = false;
    const flushing = log.flush().then(() => (flushed = true));
    await vi.advanceTimersByTimeAsync(0);
    expect(sizes()).toEqual([3]);
    expect(flushed).toBe(false);
    await accept();
    await flushing;
    expect(log.stats()).toMatchObject({ waitingRows: 0, waitingBytes: 0, writtenRows: 3, lostRows: 0 });
  });

  test('does not wait for rows that were recorded after it', async () => {
    const { log, record, accept, sizes } = createLog();
    record(1);
    const flushing = log.flush();
    await vi.advanceTimersByTimeAsync(0);
    record(1);
    await accept();
    await flushing;
    expect(sizes()).toEqual([1]);
  });

  test('with nothing recorded resolves at once', async () => {
    const { log } = createLog();
    await log.flush();
    expect(log.stats().writtenRows).toBe(0);
  });
});

describe('a database that is away', () => {
  test('the same rows are written again, with the same ids, and in order', async () => {
    const { log, record, groups, answers, accept } = createLog();
    record(64);
    await vi.advanceTimersByTimeAsync(0);
    record(10);
    answers.shift()?.reject(away());
    await vi.waitFor(() => expect(groups).toHaveLength(2));
    expect(log.stats()).toMatchObject({ isDatabaseDown: true, waitingRows: 74, writtenRows: 0 });
    expect(groups[1]).toEqual(groups[0]);
    await accept();
    await vi.advanceTimersByTimeAsync(250);
    expect(groups[2]?.map((row) => row.sequence)).toEqual([65, 66, 67, 68, 69, 70, 71, 72, 73, 74]);
    expect(log.stats().isDatabaseDown).toBe(false);
  });

  test('the log is full when as many rows wait as may, and keeps what is recorded all the same', async () => {
    const { log, record, answers, accept, groups } = createLog({ queueRowsMax: 100 });
    record(99);
    expect(log.isFull()).toBe(false);
    record(1);
    expect(log.isFull()).toBe(true);
    record(20); // Calls that were already running.
    await vi.advanceTimersByTimeAsync(0);
    answers.shift()?.reject(away());
    await accept();
    expect(log.isFull()).toBe(false);
    await accept();
    expect(groups.slice(1).flat()).toHaveLength(120);
    expect(log.stats()).toMatchObject({ writtenRows: 120, lostRows: 0, waitingRows: 0 });
  });

  test('the log is full when the waiting rows hold as much memory as they may', async () => {
    const { log } = createLog({ queueBytesMax: 50_000 });
    const metadata = Object.fromEntries(Array.from({ length: 64 }, (_, index) => [`name${index}`, 'x'.repeat(128)]));
    log.record(logEntry({ metadata }));
    expect(log.isFull()).toBe(false);
    for (let index = 0; index < 5; index += 1) log.record(logEntry({ metadata }));
    expect(log.isFull()).toBe(true);
  });
});

describe('stop', () => {
  test('writes what waits', async () => {
    const { log, record, sizes, accept } = createLog();
    await log.start?.();
    record(70);
    const stopping = Promise.resolve(log.stop?.());
    await accept();
    await accept();
    await stopping;
    expect(sizes()).toEqual([64, 6]);
  });

  test('gives up at its deadline and says which rows were lost', async () => {
    const { log, record, answers, lines } = createLog({ stopDeadlineMs: 1_000 });
    record(3);
    const stopping = Promise.resolve(log.stop?.());
    await vi.advanceTimersByTimeAsync(0);
    answers.shift()?.reject(away());
    await vi.advanceTimersByTimeAsync(1_000);
    await stopping;
    expect(log.stats()).toMatchObject({ lostRows: 3, waitingRows: 0, writtenRows: 0 });
    expect(lines.at(-1)).toMatchObject({
      msg: 'request-log rows lost during shutdown',
      rows: 3,
      sequence: { from: 1, to: 3 },
      request_ids: ['req_1', 'req_1', 'req_1'],
    });
  });

  test('does not wait longer than its deadline for an insert that hangs', async () => {
    const { log, record } = createLog({ stopDeadlineMs: 1_000 });
    record(64);
    const stopping = Promise.resolve(log.stop?.());
    await vi.advanceTimersByTimeAsync(1_000);
    await stopping;
    expect(log.stats()).toMatchObject({ lostRows: 64, waitingRows: 0 });
  });

  test('may come without a start, and twice', async () => {
    const { log } = createLog();
    await log.stop?.();
    await log.stop?.();
    expect(log.stats().lostRows).toBe(0);
  });

  test('a row recorded after it is still written', async () => {
    const { log, record, accept, groups } = createLog();
    await log.stop?.();
    record(1);
    await vi.advanceTimersByTimeAsync(250);
    await accept();
    expect(groups.flat()).toHaveLength(1);
    expect(log.stats()).toMatchObject({ writtenRows: 1, lostRows: 0 });
  });
});

test('a text from outside is cut, also between the halves of a character', async () => {
  const { log, groups, accept } = createLog();
  log.record(logEntry({ response_model: 'x'.repeat(254) + '😀'.repeat(1_000), model: '😀'.repeat(1_000) }));
  await vi.advanceTimersByTimeAsync(250);
  await accept();
  const [row] = groups.flat();
  expect(row?.response_model).toBe('x'.repeat(254) + '\u{FFFD}…');
  expect(row?.model?.isWellFormed()).toBe(true);
  expect(row?.model?.length).toBeLessThanOrEqual(256);
});
