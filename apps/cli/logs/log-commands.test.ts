import { expect, test } from 'vitest';
import { createNewCalls } from './log-commands.ts';

/** A log, newest first, and a function that polls it. */
function setUp(...ids: string[]) {
  const log = ids.map((id) => ({ id }));
  const notes: string[] = [];
  const look = createNewCalls(
    async (limit) => log.slice(0, limit),
    (line) => notes.push(line),
  );
  const add = (...more: string[]): void => {
    log.push(...more.map((id) => ({ id })));
    log.sort((a, b) => (a.id < b.id ? 1 : -1));
  };
  return { look, add, notes };
}

const ids = (from: number, count: number): string[] =>
  Array.from({ length: count }, (_value, index) => `log_${String(from + index).padStart(5, '0')}`);

test('each call is new once, oldest first, also the first ones of a log that was empty', async () => {
  const { look, add, notes } = setUp();
  expect(await look()).toEqual([]);
  add(...ids(1, 150));
  expect((await look()).map(({ id }) => id)).toEqual(ids(1, 150));
  add(...ids(200, 2));
  expect((await look()).map(({ id }) => id)).toEqual(ids(200, 2));
  expect(await look()).toEqual([]);
  expect(notes).toEqual([]);
});

test('what was there before the first look is not new', async () => {
  const { look, add } = setUp(...ids(1, 120).toReversed());
  expect(await look()).toEqual([]);
  add(...ids(200, 1));
  expect(await look()).toEqual([{ id: 'log_00200' }]);
});

test('a call that another process writes later than younger ones is new all the same', async () => {
  const { look, add } = setUp('log_00001');
  await look();
  add('log_00007');
  expect(await look()).toEqual([{ id: 'log_00007' }]);
  add('log_00005');
  expect(await look()).toEqual([{ id: 'log_00005' }]);
});

test('more calls than can be shown are left out, and it says so', async () => {
  const { look, add, notes } = setUp('log_00000');
  await look();
  add(...ids(1, 700));
  expect((await look()).map(({ id }) => id)).toEqual(ids(201, 500));
  expect(notes).toEqual(['Some calls are left out, because there are too many to show.']);
});
