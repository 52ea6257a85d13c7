import { expect, test } from 'vitest';
import { defaultLimits } from './validation.ts';
import { createSliceChecker } from './check-slices.ts';
import type { FileSlice } from './file-slices.ts';
import type { SlicePool } from './slice-pool.ts';
import type { SliceTask } from './slice-task.ts';
import validateSlice from './validate-slice-worker.ts';

const slice: FileSlice = {
  kind: 'lines',
  offset: 0,
  bytes: Buffer.from('{"a":1}\n\n{"poison":1}\n{"b":1}\n{"poison":2}'),
};

/** Threads that die when the text of a task contains `poison`. */
const poolDyingOf = (poison: string): SlicePool & { tasks: string[] } => {
  const tasks: string[] = [];
  const run = (task: SliceTask) => {
    const text = Buffer.from(task.bytes).toString();
    tasks.push(text);
    return Promise.resolve(text.includes(poison) ? null : validateSlice(task));
  };
  return { tasks, run, check: run };
};

const checkerOf = (pool: SlicePool, deadlyLinesMax: number) =>
  createSliceChecker({
    pool,
    rules: {
      ...defaultLimits,
      endpoint: '/v1/chat/completions',
      hasDefaultTarget: true,
      virtualKeys: null,
      unable: new Map(),
    },
    sliceTimeoutMs: 1_000,
    lineTimeoutMs: 1_000,
    deadlyLinesMax,
    signal: new AbortController().signal,
  });

test('a slice that kills its thread is checked line by line, and only the deadly lines get errors', async () => {
  const pool = poolDyingOf('poison');
  const { result, complete } = await checkerOf(pool, 20)(slice);
  expect(complete).toBe(true);
  expect(pool.tasks.slice(1)).toEqual(['{}', '{"a":1}', '{"poison":1}', '{}', '{"b":1}', '{"poison":2}', '{}']);
  expect(result.lineCount).toBe(5);
  expect([...result.ranges]).toEqual([0, 7, 0, 9, 21, 2, 22, 29, 3, 30, 42, 4]);
  expect(result.errors.map(({ line, code, param }) => [line, code, param])).toEqual([
    [0, 'missing_required_parameter', 'custom_id'],
    [2, 'invalid_request', 'body'],
    [3, 'missing_required_parameter', 'custom_id'],
    [4, 'invalid_request', 'body'],
  ]);
});

test('after too many deadly lines the rest is not checked', async () => {
  const { result, complete } = await checkerOf(poolDyingOf('poison'), 0)(slice);
  expect(complete).toBe(false);
  expect(result.errorCount).toBe(2);
});

test('threads that do not work at all fail the check, but not the file', async () => {
  await expect(checkerOf(poolDyingOf(''), 1)(slice)).rejects.toMatchObject({ kind: 'unavailable' });
});
