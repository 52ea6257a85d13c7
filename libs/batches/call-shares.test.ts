import { expect, test } from 'vitest';
import { createCallShares } from './call-shares.ts';

const callsMax = 128;

/** Groups that begin calls one after the other; what is not ended hangs. */
function setUp() {
  const shares = createCallShares(callsMax);
  let calls = 0;
  const begin = (...groups: string[]): boolean => {
    if (calls >= callsMax || !shares.mayBegin(groups, calls)) return false;
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
  return { fill, begin, end };
}

test.each([
  { hanging: 20, leave: 8 },
  { hanging: 30, leave: 1 },
])('$hanging groups that hang leave calls to another one, which grows with its answers', ({ hanging, leave }) => {
  const { fill, end } = setUp();
  for (let group = 0; group < hanging; group += 1) expect(fill(`hangs-${group}`)).toBeGreaterThan(0);
  let running = fill('healthy');
  expect(running).toBeGreaterThan(0);
  for (let answer = 0; answer < 20; answer += 1) {
    end(true, 'healthy');
    running += fill('healthy') - 1;
  }
  expect(running).toBeGreaterThanOrEqual(leave);
});

test('one group whose calls are answered has seven eighths of all', () => {
  const { fill, end } = setUp();
  let running = fill('a');
  expect(running).toBeLessThanOrEqual(14);
  for (let answer = 0; answer < 100; answer += 1) {
    end(true, 'a');
    running += fill('a') - 1;
  }
  expect(running).toBe(112);
});

test('a group whose calls end without an answer gets no more than it began with', () => {
  const { fill, end } = setUp();
  const first = fill('fails');
  for (let failure = 0; failure < 100; failure += 1) {
    end(false, 'fails');
    expect(fill('fails')).toBe(1);
  }
  expect(first).toBeLessThanOrEqual(14);
});

test('a group that has all it may when its provider begins to hang leaves several calls to another one', () => {
  const { fill, end } = setUp();
  let running = fill('a');
  while (running < 112) {
    end(true, 'a');
    running += fill('a') - 1;
  }
  let others = fill('b');
  for (let answer = 0; answer < 20; answer += 1) {
    end(true, 'b');
    others += fill('b') - 1;
  }
  expect(others).toBe(8);
  expect(fill('c')).toBeGreaterThan(0);
});

test('many batches of one credential that hang have no more than one of them', () => {
  const one = setUp().fill('batch-0', 'place');
  const { begin, fill } = setUp();
  let begun = 0;
  for (let batch = 0; batch < 60; batch += 1) begun += fill(`batch-${batch}`, 'place');
  expect(begun).toBe(one);
  expect(begin('another', 'elsewhere')).toBe(true);
});
