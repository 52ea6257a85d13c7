import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { BatchObject } from '#libs/contracts/batches/batches.ts';
import { checkCalls, checkResults } from './check-results.ts';

const success = (id: string, tokens = 5) => ({
  custom_id: id,
  response: {
    status_code: 200,
    body: {
      usage: {
        prompt_tokens: tokens,
        completion_tokens: 2 * tokens,
        prompt_tokens_details: { cached_tokens: 1 },
        completion_tokens_details: { reasoning_tokens: 2 },
      },
    },
  },
  error: null,
});
const failure = (id: string) => ({ custom_id: id, response: { status_code: 400, body: {} }, error: null });

const expected = new Map([
  ['a', 'output'],
  ['b', 'output'],
  ['c', 'errors'],
] as const);

const right = {
  output: [success('a'), success('b')],
  errors: [failure('c')],
  counts: { total: 3, completed: 2, failed: 1 },
  usage: {
    input_tokens: 10,
    input_tokens_details: { cached_tokens: 2 },
    output_tokens: 20,
    output_tokens_details: { reasoning_tokens: 4 },
    total_tokens: 30,
  },
};

/** Returns which of the four checks succeed. */
async function check(given: Partial<typeof right>): Promise<boolean[]> {
  const { output, errors, counts, usage } = { ...right, ...given };
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-results-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const [outputFile, errorFile] = [path.join(folder, 'output'), path.join(folder, 'errors')];
  await writeFile(outputFile, output.map((line) => `${JSON.stringify(line)}\n`).join(''));
  await writeFile(errorFile, errors.map((line) => `${JSON.stringify(line)}\n`).join(''));
  const batch = { request_counts: counts, usage } as unknown as BatchObject;
  return (await checkResults({ batch, expected, outputFile, errorFile })).map(({ ok }) => ok);
}

test('files that hold each line once, where it belongs, add up', async () => {
  expect(await check({})).toEqual([true, true, true, true]);
});

test('a missing line, a line twice, and one in both files are found', async () => {
  expect(await check({ output: [success('a')] })).toEqual([false, true, false, false]);
  expect(await check({ output: [...right.output, success('b')] })).toEqual([false, true, false, false]);
  expect((await check({ errors: [failure('c'), failure('a')] })).slice(0, 2)).toEqual([false, false]);
});

test('a line that was never sent is found', async () => {
  expect((await check({ output: [...right.output, success('x')] })).slice(0, 3)).toEqual([true, false, false]);
});

test('a failure in the output file and a success in the error file are found', async () => {
  expect((await check({ output: [success('a'), failure('b') as never] }))[1]).toBe(false);
  expect((await check({ errors: [success('c') as never] }))[1]).toBe(false);
});

test('counts and usage that are not those of the files are found', async () => {
  expect(await check({ counts: { total: 3, completed: 3, failed: 0 } })).toEqual([true, true, false, true]);
  const usage = { ...right.usage, output_tokens: 21, total_tokens: 31 };
  expect(await check({ usage })).toEqual([true, true, true, false]);
});

test('the calls that the provider saw are one for each line and one for each answer that failed at first', () => {
  const batch = { request_counts: { total: 3, completed: 2, failed: 1 } } as BatchObject;
  const stats = (chat: Record<string, number>) => ({ statuses: { 'POST /v1/chat/completions': chat } });
  expect(checkCalls(stats({ '200': 2, '400': 1, '500': 4 }), batch).ok).toBe(true);
  expect(checkCalls(stats({ '200': 3, '400': 1 }), batch).ok).toBe(false);
  expect(checkCalls(stats({ '200': 2, '400': 1, '429': 1 }), batch).ok).toBe(false);
});
