import { expect, test } from 'vitest';
import { noSuchModel } from './not-found.ts';

const similar = (name: string, names: readonly string[]): string[] => {
  const [, listed = ''] = /Similar names: (.*?)\. GET/.exec(noSuchModel('ws_1', name, names).message) ?? [];
  return listed.split(', ').filter(Boolean);
};

test('an unknown model is refused with the three most similar names, the most similar first', () => {
  const names = ['claude-gpt-5', 'gpt-4o-mini', 'gpt-4o', 'gpt-5', 'text-embedding-3-large'];
  expect(similar('gpt4o', names)).toEqual(["'gpt-4o'", "'gpt-5'", "'gpt-4o-mini'"]);
});

test('upper and lower case do not count as differences', () => {
  expect(similar('GPT-4O', ['gpt-5', 'gpt-4o'])).toEqual(["'gpt-4o'", "'gpt-5'"]);
});

test('names without any similarity are left out', () => {
  expect(similar('whisper', ['a-very-long-name-of-another-model'])).toEqual([]);
});

test('of very many names the first thousand are compared', () => {
  const names = [...Array.from({ length: 1_000 }, () => 'another-model-entirely'), 'gpt-4o'];
  expect(similar('gpt-4o', names)).toEqual([]);
});
