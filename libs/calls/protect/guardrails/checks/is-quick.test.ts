import { expect, test } from 'vitest';
import { GuardrailList, type Guardrail } from '#libs/contracts/configs/guardrails.ts';
import { isQuick } from './is-quick.ts';
import type { TextWork } from '../check-texts.ts';
import { isTextCheck } from './text-checks.ts';

function workOf(checks: object, text: string): TextWork {
  const [guardrail] = GuardrailList.parse([checks]) as Guardrail[];
  return {
    checks: (guardrail?.checks ?? []).filter(isTextCheck),
    texts: { said: [text], measured: [text], unreadable: null },
  };
}

test('ordinary checks of a short text are quick', () => {
  expect(isQuick(workOf({ contains: { words: ['a'] }, jsonSchema: { schema: { type: 'object' } } }, 'hello'))).toBe(
    true,
  );
});

test.each(['url', 'email', 'uri'])('a schema with the format %s is not, however short the text', (format) => {
  const schema = { type: 'object', properties: { link: { format } } };
  expect(isQuick(workOf({ jsonSchema: { schema } }, '{"link":"http://a"}'))).toBe(false);
});

test('an expression is if a long text has nothing of what it looks for, and else if the text is short', () => {
  const rule = '[a-z]{1,9}@[a-z]{1,9}';
  const words = 'a few words '.repeat(2_000);
  expect(isQuick(workOf({ regexMatch: { rule } }, words))).toBe(true);
  expect(isQuick(workOf({ regexMatch: { rule } }, `${words}@`))).toBe(false);
  expect(isQuick(workOf({ regexMatch: { rule } }, 'ada@example'))).toBe(true);
  expect(isQuick(workOf({ regexMatch: { rule } }, words.repeat(20)))).toBe(false);
});

test('an expression is not if text between \\Q and \\E hides what it repeats', () => {
  const rule = `\\Q[\\E${'(?:a?){100}'.repeat(50)}`;
  expect(isQuick(workOf({ regexMatch: { rule } }, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'))).toBe(false);
});
