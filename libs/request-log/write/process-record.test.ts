import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { createProcessRecord, defaultHeartbeatMs as heartbeatMs, type ProcessUpdate } from './process-record.ts';

const noonMs = Date.UTC(2026, 10, 21, 12);
const hourMs = 3_600_000;

/** A record whose writes are answered by `answer`; by default each of them succeeds. */
function createRecord() {
  const { logger, lines } = createTestLogger();
  const updates: ProcessUpdate[] = [];
  const state = { lastSequence: 0, writtenSequence: 0, lostRows: 0 };
  const database = { answer: async (): Promise<void> => {} };
  const record = createProcessRecord({
    writeProcess: async (update) => {
      updates.push(update);
      await database.answer();
    },
    state: () => ({ ...state }),
    logger,
  });
  const daysOf = (update: ProcessUpdate | undefined) => [...(update?.firstSequences ?? [])];
  return { record, lines, updates, state, database, daysOf };
}

const away = (): Error => Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });
const never = (): AbortSignal => new AbortController().signal;

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

describe('while it runs', () => {
  test('the process says at its start that it is there, and at intervals how far it is', async () => {
    const { record, updates, state } = createRecord();
    await record.start();
    expect(updates).toEqual([{ ...state, firstSequences: new Map(), hasStopped: false }]);
    Object.assign(state, { lastSequence: 70, writtenSequence: 64, lostRows: 1 });
    await vi.advanceTimersByTimeAsync(heartbeatMs);
    expect(updates.slice(1)).toMatchObject([{ lastSequence: 70, writtenSequence: 64, lostRows: 1, hasStopped: false }]);
  });

  test('the first row of a day is told at once, and once', async () => {
    const { record, updates, daysOf } = createRecord();
    await record.start();
    for (let sequence = 1; sequence <= 3; sequence += 1) record.note(sequence, noonMs);
    await vi.advanceTimersByTimeAsync(0);
    expect(updates.slice(1).map(daysOf)).toEqual([[['2026-11-21', 1]]]);
    record.note(4, noonMs + 12 * hourMs);
    await vi.advanceTimersByTimeAsync(heartbeatMs);
    expect(updates.slice(2).map(daysOf)).toEqual([[['2026-11-22', 4]], []]);
  });

  test('a clock that goes back over midnight does not move the first row of a day', async () => {
    const { record, database, updates, daysOf } = createRecord();
    database.answer = () => Promise.reject(away());
    record.note(1, noonMs);
    record.note(2, noonMs + 12 * hourMs);
    record.note(3, noonMs + 12 * hourMs - 1);
    record.note(4, noonMs + 12 * hourMs);
    await vi.advanceTimersByTimeAsync(0);
    database.answer = async () => {};
    await record.start();
    expect(daysOf(updates.at(-1))).toEqual([
      ['2026-11-21', 1],
      ['2026-11-22', 2],
    ]);
  });

  test('what could not be said is said the next time, and a database that stays away is told once', async () => {
    const { record, lines, updates, database, daysOf } = createRecord();
    database.answer = () => Promise.reject(away());
    await record.start();
    record.note(1, noonMs);
    await vi.advanceTimersByTimeAsync(4 * heartbeatMs);
    expect(lines).toMatchObject([{ level: 40, loop: 'request log heartbeat' }]);
    database.answer = async () => {};
    await vi.advanceTimersByTimeAsync(heartbeatMs);
    expect(daysOf(updates.at(-1))).toEqual([['2026-11-21', 1]]);
    await vi.advanceTimersByTimeAsync(heartbeatMs);
    expect(daysOf(updates.at(-1))).toEqual([]);
    expect(lines.slice(1)).toMatchObject([{ level: 30, loop: 'request log heartbeat' }]);
  });

  test('a write that hangs is not joined by another', async () => {
    const { record, updates, database } = createRecord();
    database.answer = () => new Promise(() => {});
    void record.start();
    await vi.advanceTimersByTimeAsync(10 * heartbeatMs);
    expect(updates).toHaveLength(1);
  });
});

describe('at the end', () => {
  test('the process says that it has stopped, and nothing more', async () => {
    const { record, lines, updates, state } = createRecord();
    await record.start();
    Object.assign(state, { lastSequence: 9, writtenSequence: 9 });
    await record.finish(never());
    await vi.advanceTimersByTimeAsync(10 * heartbeatMs);
    expect(updates.slice(1)).toMatchObject([{ lastSequence: 9, writtenSequence: 9, hasStopped: true }]);
    expect(lines).toEqual([]);
  });

  test('it does not wait for a heartbeat that hangs', async () => {
    const { record, database, updates } = createRecord();
    database.answer = () => new Promise(() => {});
    void record.start();
    database.answer = async () => {};
    await record.finish(never());
    expect(updates.at(-1)?.hasStopped).toBe(true);
  });

  test('a connection that was lost is tried again', async () => {
    const { record, database, updates, lines } = createRecord();
    database.answer = () => {
      database.answer = async () => {};
      return Promise.reject(away());
    };
    const finishing = record.finish(never());
    await vi.advanceTimersByTimeAsync(1_000);
    await finishing;
    expect(updates.map((update) => update.hasStopped)).toEqual([true, true]);
    expect(lines).toEqual([]);
  });

  test.each([
    ['refuses', () => Promise.reject(away())],
    ['hangs', () => new Promise<never>(() => {})],
  ])('a database that %s holds it up for 2 s', async (_how, answer) => {
    const { record, database, lines } = createRecord();
    database.answer = answer;
    let isDone = false;
    const finishing = record.finish(never()).then(() => (isDone = true));
    await vi.advanceTimersByTimeAsync(1_999);
    expect(isDone).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    await finishing;
    expect(lines.at(-1)).toMatchObject({ level: 40, msg: expect.stringContaining('could not be recorded') });
  });

  test('the deadline of the stop comes first', async () => {
    const { record, database, updates } = createRecord();
    database.answer = () => new Promise(() => {});
    const deadline = new AbortController();
    const finishing = record.finish(deadline.signal);
    deadline.abort();
    await finishing;
    expect(updates).toHaveLength(1);
    await record.finish(deadline.signal);
    expect(updates).toHaveLength(1);
  });
});
