import { AsyncLocalStorage } from 'node:async_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { createBackgroundLoop, loopStates } from './background-loop.ts';
import type { Logger } from './logging/logger.ts';

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] }));
afterEach(() => vi.useRealTimers());

function setUp() {
  const lines: string[] = [];
  const log =
    (level: string) =>
    (_fields: object, message: string): void =>
      void lines.push(`${level}: ${message}`);
  const state = { runs: 0, result: async (_signal: AbortSignal): Promise<unknown> => undefined };
  const loop = createBackgroundLoop({
    name: 'sweep',
    periodMs: 1_000,
    run: (signal) => {
      state.runs += 1;
      return state.result(signal);
    },
    logger: { warn: log('warn'), info: log('info') } as unknown as Logger,
  });
  const pass = async (ms: number): Promise<void> => {
    await vi.advanceTimersByTimeAsync(ms);
    await nextTurn();
    await nextTurn();
  };
  return { loop, state, lines, pass };
}

/** Loops of other test files in this process can be running too. */
const sweepStates = () => loopStates().filter(({ name }) => name === 'sweep');

const failing = async (): Promise<never> => {
  throw new Error('away');
};

test('runs at its start, and then once per period until it is stopped', async () => {
  const { loop, state, pass } = setUp();
  loop.start();
  await pass(0);
  expect(state.runs).toBe(1);
  await pass(999);
  expect(state.runs).toBe(1);
  await pass(1);
  expect(state.runs).toBe(2);
  await loop.stop();
  await loop.wake();
  await pass(10_000);
  expect(state.runs).toBe(2);
});

test('runs once for all who wake it in one turn, and once more for all who wake it during a run', async () => {
  const { loop, state } = setUp();
  const { promise, resolve } = Promise.withResolvers<void>();
  state.result = async () => await promise;
  const first = Promise.all([loop.wake(), loop.wake()]);
  await nextTurn();
  const second = Promise.all([loop.wake(), loop.wake()]);
  await nextTurn();
  expect(state.runs).toBe(1);
  resolve();
  await Promise.all([first, second]);
  expect(state.runs).toBe(2);
});

test('a run that wakes its own loop is followed by another, not joined by it', async () => {
  const { loop, state } = setUp();
  let depth = 0;
  state.result = async () => {
    depth += 1;
    expect(depth).toBe(1);
    if (state.runs === 1) void loop.wake();
    await nextTurn();
    depth -= 1;
  };
  await loop.wake();
  for (let turns = 0; turns < 4; turns += 1) await nextTurn();
  expect(state.runs).toBe(2);
});

test('logs an outage once when it begins and once when it ends', async () => {
  const { loop, state, lines } = setUp();
  loop.start();
  expect(sweepStates()).toMatchObject([{ name: 'sweep', isFailing: false }]);
  state.result = failing;
  await loop.wake();
  await loop.wake();
  expect(lines).toEqual(['warn: background loop fails and is retried']);
  expect(loop.error()).toEqual(new Error('away'));
  expect(sweepStates()).toMatchObject([{ name: 'sweep', isFailing: true }]);
  const failedMs = loop.succeededMs();
  state.result = async () => 'idle';
  await loop.wake();
  expect(loop.error()).toEqual(new Error('away'));
  state.result = async () => undefined;
  await loop.wake();
  await loop.wake();
  expect(lines.slice(1)).toEqual(['info: background loop works again']);
  expect(loop.error()).toBeUndefined();
  expect(loop.succeededMs()).toBeGreaterThan(failedMs);
  await loop.stop();
  expect(sweepStates()).toEqual([]);
});

test('a stop aborts the run, waits for it, and logs no failure', async () => {
  const { loop, state, lines } = setUp();
  state.result = async (signal) => {
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
    await nextTurn();
    throw new Error('stopped');
  };
  const woken = loop.wake();
  await nextTurn();
  await loop.stop();
  await woken;
  expect(loop.error()).toEqual(new Error('stopped'));
  expect(lines).toEqual([]);
});

test('runs outside of the context of whoever wakes it', async () => {
  const { loop, state } = setUp();
  const request = new AsyncLocalStorage<string>();
  const seen: unknown[] = [];
  state.result = async () => void seen.push(request.getStore());
  await request.run('ws_1', () => loop.wake());
  expect(seen).toEqual([undefined]);
});
