import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { StartError } from '../start-error.ts';
import { readQuestions } from './read-questions.ts';

let scratch: string;
beforeAll(async () => {
  scratch = await mkdtemp(path.join(tmpdir(), 'sluice-questions-'));
});
afterAll(() => rm(scratch, { recursive: true, force: true }));
const fileOf = async (text: string): Promise<string> => {
  const file = path.join(scratch, 'questions.jsonl');
  await writeFile(file, text);
  return file;
};

test('without a file questions are generated, no two alike', async () => {
  const { questions, source } = await readQuestions(undefined);
  expect(source).toBe('generated');
  expect(new Set(questions).size).toBe(3_000);
});

test('the questions of a file are used, blank lines aside', async () => {
  const file = await fileOf('{"question":"How many?","answer":"2"}\n\n{"question":"Why?"}\n');
  expect(await readQuestions(file)).toEqual({ questions: ['How many?', 'Why?'], source: `from ${file}` });
});

test.each([
  ['{"question":"How many?"}\n{"text":"Why?"}\n', 'Line 2 of the questions must be a JSON object'],
  ['{"question":\n', 'Line 1 of the questions must be a JSON object'],
  ['\n', 'There are no questions in'],
])('a file of %j is refused by its line', async (text, message) => {
  const refused = readQuestions(await fileOf(text));
  await expect(refused).rejects.toThrow(StartError);
  await expect(refused).rejects.toThrow(message);
});

test('a file that is not there is refused by its name', async () => {
  await expect(readQuestions(path.join(scratch, 'none.jsonl'))).rejects.toThrow(
    /none\.jsonl cannot be read \(ENOENT\)/,
  );
});
