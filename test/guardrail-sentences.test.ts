import { expect, test } from 'vitest';
import { checkText, isTextCheck } from '#libs/calls/protect/guardrails/checks/text-checks.ts';
import { guardrailChecks } from '#libs/contracts/configs/guardrail-checks.ts';
import { GuardrailInput, isReference } from '#libs/contracts/configs/guardrails.ts';
import {
  conditionOf,
  conditions,
  guardrailSentence,
  templates,
  withCondition,
} from '#apps/console/src/pages/guardrail-sentences.ts';

/** Whether the gateway itself passes a text under a check. */
function passes({ id, parameters }: { id: string; parameters: object }, text: string): boolean {
  const guardrail = GuardrailInput.parse({ checks: [{ id, parameters }] });
  const [check] = isReference(guardrail) ? [] : guardrail.checks;
  if (check === undefined || !isTextCheck(check)) throw new Error('not a check of a text');
  return checkText(check, text).verdict;
}

test('every check can be said, and every condition is read back as itself', () => {
  expect(new Set(conditions.map(({ check }) => check))).toEqual(new Set(Object.keys(guardrailChecks)));
  for (const condition of conditions) {
    expect(conditionOf({ id: condition.check, parameters: condition.parameters })).toBe(condition);
  }
});

test.each([
  ['the message contains one of these words', { words: ['a', 'b'] }, 'x', 'a'],
  ['the message contains all of these words', { words: ['a', 'b'] }, 'a', 'ab'],
  ['the message contains none of these words', { words: ['a', 'b'] }, 'a', 'x'],
  ['the message does not contain all of these words', { words: ['a', 'b'] }, 'ab', 'a'],
  ['the message matches this pattern', { rule: 'sk-[a-z]+' }, 'x', 'sk-abc'],
  ['the message does not match this pattern', { rule: 'sk-[a-z]+' }, 'sk-abc', 'x'],
  ['the message ends with this text', { suffix: 'end' }, 'start', 'the end'],
  ['the message does not end with this text', { suffix: 'end' }, 'the end', 'start'],
  ['the number of words is outside this range', { max: 2 }, 'one two', 'one two three'],
  ['the number of words is within this range', { max: 2 }, 'one two three', 'one two'],
  ['the number of sentences is outside this range', { max: 1 }, 'One.', 'One. Two.'],
  ['the number of sentences is within this range', { max: 1 }, 'One. Two.', 'One.'],
  ['the number of characters is outside this range', { max: 1 }, 'a', 'ab'],
  ['the number of characters is within this range', { max: 1 }, 'ab', 'a'],
  ['the message has capital letters', {}, 'a', 'A'],
  ['the message has no capital letters', {}, 'A', 'a'],
  ['the message has lower-case letters', {}, 'A', 'a'],
  ['the message has no lower-case letters', {}, 'a', 'A'],
  ['the message contains a block of code in this language', { format: 'js' }, 'x', '```js\nx\n```'],
  ['the message contains no block of code in this language', { format: 'js' }, '```js\nx\n```', 'x'],
  ['the message contains no URL, or an invalid one', {}, 'https://example.com', 'x'],
  ['the message contains URLs that are all valid', {}, 'x', 'https://example.com'],
  ['the message is not JSON that matches this schema', { schema: { required: ['a'] } }, '{"a":1}', '{}'],
  ['the message is JSON that matches this schema', { schema: { required: ['a'] } }, '{}', '{"a":1}'],
  ['the message has none of these JSON keys', { keys: ['a', 'b'] }, '{"a":1}', '{}'],
  ['the message lacks one of these JSON keys', { keys: ['a', 'b'] }, '{"a":1,"b":1}', '{"a":1}'],
  ['the message has one of these JSON keys, or is not JSON', { keys: ['a', 'b'] }, '{}', '{"a":1}'],
])('a call is refused when %s', (text, parameters, good, bad) => {
  const condition = conditions.find((each) => each.text === text);
  if (condition === undefined) throw new Error(`no condition '${text}'`);
  const check = withCondition({ id: condition.check, parameters }, condition);
  expect([passes(check, good), passes(check, bad)]).toEqual([true, false]);
});

test.each(templates)('the template "$name" refuses its failing text alone', ({ check, passing, failing }) => {
  expect([passes(check, passing), passes(check, failing)]).toEqual([true, false]);
});

test('a guardrail reads as a sentence', () => {
  const words = { id: 'contains', parameters: { words: ['password', 'secret'], operator: 'any', not: true } };
  const count = { id: 'wordCount', parameters: { maxWords: 100 } };
  expect(guardrailSentence([words, count], true)).toBe(
    'Reject the call when the message contains one of these words: password, secret, or the number of words is outside ' +
      'this range (at most 100).',
  );
  expect(guardrailSentence([{ id: 'jwt', parameters: {} }], false)).toBe(
    'Report the call when the call has no valid token.',
  );
});
