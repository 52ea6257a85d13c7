import { expect, test } from 'vitest';
import { createCallShares } from './call-shares.ts';

const callsMax = 128;

/** Groups that begin calls one after the other. Calls that are not ended hang. */
function setUp() {
  const shares = createCallShares(callsMax);
  let calls = 0;
  const begin = (...groups: string[]): boolean => {
    if (!shares.mayBegin(groups, calls)) return false;
    shares.begin(groups);
    calls += 1;
    return true;
  };
  const fill = (...groups: string[]): number => {
    let begun = 0;
    while (begin(...groups)) begun += 1;
    return begun;
  };
  const end = (isAnswered: boolean, ...groups: string[]): void => {
    shares.end(groups, isAnswered);
    calls -= 1;
  };
  /** How many calls run at once after this many answers, when each answer starts as many calls as allowed. */
  const grow = (answers: number, ...groups: string[]): number => {
    let running = fill(...groups);
    for (let answer = 0; answer < answers && running > 0; answer += 1) {
      end(true, ...groups);
      running += fill(...groups) - 1;
    }
    return running;
  };
  return { fill, begin, end, grow };
}

test.each([
  { hanging: 20, leave: 8 },
  { hanging: 30, leave: 1 },
])('$hanging groups that hang leave calls to another one, which grows with its answers', ({ hanging, leave }) => {
  const { fill, grow } = setUp();
  for (let place = 0; place < hanging; place += 1) expect(fill('ws', `hangs-${place}`)).toBeGreaterThan(0);
  expect(grow(20, 'ws', 'healthy')).toBeGreaterThanOrEqual(leave);
});

test('however many destinations of one workspace hang, another workspace gets calls, and more with each answer', () => {
  const { fill, grow } = setUp();
  for (let place = 0; place < 200; place += 1) fill('ws', `hangs-${place}`);
  expect(grow(20, 'another', 'healthy')).toBeGreaterThanOrEqual(4);
});

test('a workspace with answers and with destinations that hang leaves calls to another one', () => {
  const { fill, grow } = setUp();
  for (let place = 0; place < 60; place += 1) {
    fill('ws', `hangs-${place}`);
    grow(20, 'ws', 'healthy');
  }
  expect(grow(20, 'another', 'elsewhere')).toBeGreaterThanOrEqual(4);
});

test('when the calls of a hundred workspaces hang, the next one still gets one call, and then another', () => {
  const { fill, begin, end } = setUp();
  for (let workspace = 0; workspace < 100; workspace += 1) {
    expect(fill(`ws-${workspace}`, `hangs-${workspace}`)).toBeGreaterThan(0);
  }
  for (let line = 0; line < 10; line += 1) {
    expect(begin('healthy', 'place')).toBe(true);
    end(true, 'healthy', 'place');
  }
});

test('the calls that workspaces begin beyond the limit are bounded', () => {
  const { fill } = setUp();
  let running = 0;
  for (let workspace = 0; workspace < 1_000; workspace += 1) running += fill(`ws-${workspace}`, `place-${workspace}`);
  expect(running).toBe(2 * callsMax);
});

test('a single batch whose calls are answered gets seven eighths of all calls', () => {
  expect(setUp().fill('ws', 'place', 'a')).toBeLessThanOrEqual(14);
  expect(setUp().grow(100, 'ws', 'place', 'a')).toBe(112);
});

test('a workspace with ten batches and one with a single batch have about the same number of calls', () => {
  const { begin, end } = setUp();
  const batches = [
    ...Array.from({ length: 10 }, (_value, batch) => ['many', `place-${batch}`, `batch-${batch}`]),
    ['one', 'place', 'batch'],
  ].map((groups) => ({ groups, running: 0 }));
  for (let round = 0; round < 500; round += 1) {
    for (const batch of batches) {
      if (batch.running > 0) end(true, ...batch.groups);
      batch.running = Math.max(0, batch.running - 1);
    }
    // The two take turns.
    for (let begun = true; begun;) {
      begun = false;
      for (const batch of batches) {
        if (!begin(...batch.groups)) continue;
        batch.running += 1;
        begun = true;
      }
    }
  }
  const callsOf = (workspace: string): number =>
    batches.filter(({ groups }) => groups[0] === workspace).reduce((sum, { running }) => sum + running, 0);
  expect(callsOf('many') + callsOf('one')).toBeGreaterThan(110);
  expect(callsOf('one')).toBeGreaterThan(40);
});

test('a group whose calls end without an answer gets no more calls than it had at the beginning', () => {
  const { fill, end } = setUp();
  const fails = ['ws', 'place', 'fails'];
  const first = fill(...fails);
  for (let failure = 0; failure < 100; failure += 1) {
    end(false, ...fails);
    expect(fill(...fails)).toBe(1);
  }
  expect(first).toBeLessThanOrEqual(14);
});

test('a destination with its full share whose provider begins to hang leaves calls to others and to other workspaces', () => {
  const { grow } = setUp();
  expect(grow(100, 'ws', 'a')).toBe(112);
  expect(grow(20, 'ws', 'b')).toBe(8);
  expect(grow(20, 'another', 'c')).toBe(4);
});

test('many batches with one credential whose calls hang get no more calls than one of them', () => {
  const one = setUp().fill('ws', 'place', 'batch-0');
  const { begin, fill } = setUp();
  let begun = 0;
  for (let batch = 0; batch < 60; batch += 1) begun += fill('ws', 'place', `batch-${batch}`);
  expect(begun).toBe(one);
  expect(begin('ws', 'elsewhere', 'another')).toBe(true);
});
