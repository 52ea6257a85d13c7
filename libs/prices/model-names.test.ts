import { describe, expect, test } from 'vitest';
import { commonModelName, isModelNamed } from './model-names.ts';

describe('a rule about a model', () => {
  test.each([
    ['gpt-4o', 'gpt-4o'],
    ['gpt-4o', 'GPT-4o'],
    ['GPT-4o', 'gpt-4o'],
    ['gpt-4o', 'gpt-4o-2024-08-06'],
    ['gpt-4o', 'ft:gpt-4o:acme::id'],
    ['gpt-4o', 'ft:gpt-4o-2024-08-06:acme::id'],
    ['ft:gpt-4o', 'ft:gpt-4o:acme::id'],
    ['gpt-4o', 'openai/gpt-4o'],
    ['openai/gpt-4o', 'gpt-4o'],
    ['models/gemini-2.0-flash', 'gemini-2.0-flash-001'],
    ['anthropic.claude-sonnet-4', 'us.anthropic.claude-sonnet-4-20250514-v1:0'],
    ['gpt-4o-2024-08-06', 'GPT-4o-2024-08-06'],
  ])('%s applies to %s', (rule, model) => {
    expect(isModelNamed(model, rule)).toBe(true);
  });

  test.each([
    ['gpt-4o', 'gpt-4o-mini'],
    ['gpt-4o', 'gpt-4'],
    ['gpt-4o-2024-05-13', 'gpt-4o-2024-08-06'],
    ['gpt-4o-2024-05-13', 'gpt-4o'],
    ['ft:gpt-4o', 'gpt-4o'],
  ])('%s does not apply to %s', (rule, model) => {
    expect(isModelNamed(model, rule)).toBe(false);
  });
});

test('spellings of one model have one common name, and other models have others', () => {
  const spellings = ['gpt-4o', 'GPT-4O', 'gpt-4o-2024-08-06', 'gpt-4o-latest', 'openai/gpt-4o'];
  expect(new Set(spellings.map(commonModelName))).toEqual(new Set(['gpt-4o']));
  expect(commonModelName('ft:gpt-4o-2024-08-06:acme::id')).toBe('ft:gpt-4o');
  const different = ['deepseek-v2', 'deepseek-v3', 'gpt-4o-mini', 'anthropic.claude-v2:1', 'anthropic.claude-v2:0'];
  expect(new Set(different.map(commonModelName)).size).toBe(different.length);
});
