import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Wait } from '#libs/calls/call.ts';
import { createChunkPulse, idleMsMax, type ChunkPulse } from './chunk-pulse.ts';

let isCrowded: boolean;
let pulse: ChunkPulse;
const create = (putOffs: number): ChunkPulse =>
  createChunkPulse({ now: Date.now, isCrowded: () => isCrowded, putOffs });

beforeEach(() => {
  vi.useFakeTimers();
  isCrowded = true;
  pulse = create(0);
});
afterEach(() => {
  pulse.stop();
  vi.useRealTimers();
});

const waitFor = (reason: Wait['reason'], forMs: number | null = 60_000): (() => void) =>
  pulse.begin({ reason, label: 'p', model: 'm', untilMs: forMs === null ? null : Date.now() + forMs });
const startTwo = (): void => {
  pulse.started();
  pulse.started();
  pulse.allStarted();
};

test('a chunk all of whose lines are told to wait for long is put off until the first of them can go on', () => {
  startTwo();
  waitFor('rate_limited', 60_000);
  expect(pulse.putOff.aborted).toBe(false);
  waitFor('circuit_open', 40_000);
  expect(pulse.putOff.aborted).toBe(true);
  expect(pulse.resumeAtMs()).toBe(Date.now() + 40_000);
});

test.each([
  [0, 5_000],
  [1, 10_000],
  [4, 80_000],
  [1_000, 80_000],
])('a chunk that was put off %i times before, for a short wait, is put off for %i ms', (putOffs, ms) => {
  pulse.stop();
  pulse = create(putOffs);
  startTwo();
  waitFor('rate_limited', 4_000);
  waitFor('rate_limited', 4_000);
  expect(pulse.putOff.aborted).toBe(true);
  expect(pulse.resumeAtMs()).toBe(Date.now() + ms);
});

test('a chunk all of whose lines have waited for long, for nobody knows what, is put off', () => {
  startTwo();
  waitFor('provider_busy', null);
  waitFor('rate_limited', 60_000);
  vi.advanceTimersByTime(idleMsMax - 1);
  expect(pulse.putOff.aborted).toBe(false);
  vi.advanceTimersByTime(1_001);
  expect(pulse.putOff.aborted).toBe(true);
});

test.each([
  ['a line calls', () => pulse.started()],
  [
    'a line waits for the next of its counted attempts',
    () => {
      pulse.started();
      waitFor('retry');
    },
  ],
  [
    'nobody needs its room',
    () => {
      isCrowded = false;
    },
  ],
])('a chunk is not put off while %s', (_what, alsoSo) => {
  startTwo();
  alsoSo();
  waitFor('rate_limited');
  waitFor('rate_limited');
  vi.advanceTimersByTime(10 * idleMsMax);
  expect(pulse.putOff.aborted).toBe(false);
});

test('nor while lines of it have not started, nor so soon after one was answered', () => {
  pulse.started();
  waitFor('rate_limited', 1_000);
  vi.advanceTimersByTime(10 * idleMsMax);
  expect(pulse.putOff.aborted).toBe(false);
  pulse.started();
  pulse.allStarted();
  pulse.ended();
  vi.advanceTimersByTime(idleMsMax - 1_000);
  expect(pulse.putOff.aborted).toBe(false);
  vi.advanceTimersByTime(2_000);
  expect(pulse.putOff.aborted).toBe(true);
});

test('waits that come and go count as one: with a call now and then that is turned away, it is put off all the same', () => {
  startTwo();
  waitFor('rate_limited');
  let end = waitFor('rate_limited', 900);
  for (let n = 0; n < 12 && !pulse.putOff.aborted; n += 1) {
    vi.advanceTimersByTime(900);
    end(); // calls
    end = waitFor('rate_limited', 900);
  }
  expect(pulse.putOff.aborted).toBe(true);
});

test.each([
  [null, 5_000],
  [1, 5_000],
  [86_400_000, 300_000],
])('a wait of %s ms puts a chunk off for %i', (forMs, expected) => {
  pulse.started();
  pulse.allStarted();
  vi.advanceTimersByTime(idleMsMax + 500);
  waitFor('provider_busy', forMs);
  expect(pulse.putOff.aborted).toBe(true);
  expect(pulse.resumeAtMs() - Date.now()).toBe(expected);
});
