import { expect, test } from 'vitest';
import { nearestNames } from './not-found.ts';

test('the three most similar names are returned, the most similar first', () => {
  const names = ['claude-gpt-5', 'gpt-4o-mini', 'gpt-4o', 'gpt-5', 'text-embedding-3-large'];
  expect(nearestNames('gpt4o', names)).toEqual(['gpt-4o', 'gpt-5', 'gpt-4o-mini']);
});

test('upper and lower case do not count as differences', () => {
  expect(nearestNames('GPT-4O', ['gpt-5', 'gpt-4o'])).toEqual(['gpt-4o', 'gpt-5']);
});

test('names without any similarity are left out', () => {
  expect(nearestNames('whisper', ['a-very-long-name-of-another-model'])).toEqual([]);
});

test('of very many names the first thousand are compared', () => {
  const names = [...Array.from({ length: 1_000 }, () => 'another-model-entirely'), 'gpt-4o'];
  expect(nearestNames('gpt-4o', names)).toEqual([]);
});
