import { expect, test } from 'vitest';
import { z } from 'zod';
import { CircuitBreakerInput } from './circuit-breaker.ts';
import { GuardrailInput, GuardrailList, type Guardrail } from './guardrails.ts';
import { tryParse } from '../parse.ts';
import { CacheInput } from '../calls/response-cache.ts';

const own = (value: unknown) => GuardrailInput.parse(value) as Guardrail;
const problemOf = (value: unknown, schema: z.ZodType = GuardrailInput) => {
  const result = tryParse(schema, value);
  if (result.ok) throw new Error('was accepted');
  return result.problem;
};

test('the long form and the short form of a guardrail are the same guardrail', () => {
  const long = {
    type: 'guardrail',
    deny: true,
    checks: [{ id: 'default.contains', parameters: { words: ['a'], operator: 'none' } }],
  };
  const short = { 'default.contains': { words: ['a'], operator: 'none' }, deny: true };
  const expected = {
    id: null,
    record: null,
    name: null,
    deny: true,
    async: false,
    streamMode: 'hold',
    onSuccess: null,
    onFail: null,
    checks: [
      {
        name: 'contains',
        id: 'default.contains',
        label: null,
        allowsMedia: false,
        parameters: { words: ['a'], operator: 'none', not: false },
      },
    ],
  };
  expect(GuardrailInput.parse(long)).toEqual(expected);
  expect(GuardrailInput.parse(short)).toEqual(expected);
  expect(GuardrailInput.parse({ contains: { words: ['a'], operator: 'none' }, deny: true })).toEqual(expected);
});

test('several checks of one short form are all kept, and feedback is passed on', () => {
  const guardrail = own({
    wordCount: { maxWords: 3 },
    'default.regexMatch': { rule: 'x', not: true },
    on_fail: { feedback: { value: -5, weight: 1, metadata: { user: 'a' } } },
  });
  expect(guardrail.checks.map((check) => check.id).toSorted()).toEqual(['default.regexMatch', 'default.wordCount']);
  expect(guardrail.onFail).toEqual({ value: -5, weight: 1, metadata: { user: 'a' } });
});

test('a stored guardrail is named by a text, or by an object with nothing but its id', () => {
  const list = ['mine', { id: 'mine' }, { type: 'guardrail', id: 'mine' }];
  expect(GuardrailList.parse(list)).toEqual([{ stored: 'mine' }, { stored: 'mine' }, { stored: 'mine' }]);
  expect(problemOf({ id: 'mine', deny: true })).toMatchObject({ code: 'missing_required_parameter', param: 'checks' });
  expect(problemOf([''], GuardrailList).param).toBe('[0]');
  expect(problemOf(['x'.repeat(201)], GuardrailList).param).toBe('[0]');
  expect(problemOf([1], GuardrailList).param).toBe('[0]');
  expect(problemOf([{ id: '' }], GuardrailList).param).toBe('[0].id');
});

test('what denies holds streams, what only reports annotates them, and an impossible mode is refused', () => {
  const mode = (more: object) => own({ isAllLowerCase: {}, ...more }).streamMode;
  expect([mode({}), mode({ deny: true }), mode({ deny: true, async: true })]).toEqual(['annotate', 'hold', 'annotate']);
  expect(mode({ stream_mode: 'hold' })).toBe('hold');
  for (const wrong of [
    { deny: true, stream_mode: 'annotate' },
    { async: true, stream_mode: 'hold' },
  ]) {
    expect(problemOf({ isAllLowerCase: {}, ...wrong })).toMatchObject({ code: 'invalid_value', param: 'stream_mode' });
  }
});

test('a disabled check is left out, and a guardrail without a check is refused', () => {
  const disabled = { checks: [{ id: 'contains', parameters: { words: ['a'] }, is_enabled: false }] };
  expect(problemOf(disabled)).toMatchObject({ code: 'missing_required_parameter', param: 'checks' });
  expect(problemOf({ deny: true })).toMatchObject({ code: 'missing_required_parameter', param: 'checks' });
});

test('unknown checks, members and parameters are refused by name', () => {
  expect(problemOf({ 'default.clairvoyance': {} })).toMatchObject({
    code: 'unknown_parameter',
    param: 'default.clairvoyance',
  });
  expect(problemOf({ contains: { words: ['a'], wrods: 1 } })).toMatchObject({ param: 'contains.wrods' });
  expect(problemOf([{ checks: [{ id: 'default.magic', parameters: {} }] }], GuardrailList).param).toBe(
    '[0].checks[0].id',
  );
  expect(problemOf([{ contains: { words: [] } }], GuardrailList)).toMatchObject({ param: '[0].contains.words' });
});

test.each([
  [{ wordCount: {} }, 'wordCount.min'],
  [{ wordCount: { min: 5, max: 4 } }, 'wordCount.min'],
  [{ regexMatch: { rule: 'x'.repeat(1_001) } }, 'regexMatch.rule'],
  [{ webhook: { webhookURL: 'ftp://example.com' } }, 'webhook.webhookURL'],
  [{ webhook: { webhookURL: 'https://example.com', headers: '{"a":1}' } }, 'webhook.headers.a'],
  [{ webhook: { webhookURL: 'https://example.com', timeout: 60_000 } }, 'webhook.timeout'],
])('%j is refused at %s', (guardrail, param) => {
  expect(problemOf(guardrail).param).toBe(param);
});

test("Portkey's request types are ours", () => {
  const guardrail = own({ allowedRequestTypes: { allowedTypes: ['chatComplete', 'embeddings'] } });
  expect(guardrail.checks[0]?.parameters).toMatchObject({ allowedTypes: ['chat', 'embeddings'] });
});

test('the schemas can be shown as JSON Schema', () => {
  for (const schema of [GuardrailList, CacheInput, CircuitBreakerInput]) {
    expect(() => z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' })).not.toThrow();
  }
});

test('a cache has an age between a minute and ninety days, a week when nothing is said', () => {
  expect(CacheInput.parse('simple')).toEqual({ maxAgeSeconds: 604_800 });
  expect(CacheInput.parse({ mode: 'simple', max_age: 60 })).toEqual({ maxAgeSeconds: 60 });
  expect(problemOf({ mode: 'simple', max_age: 59 }, CacheInput).param).toBe('max_age');
  expect(problemOf({ mode: 'simple', max_age: 7_776_001 }, CacheInput).param).toBe('max_age');
  expect(problemOf({ mode: 'semantic' }, CacheInput)).toMatchObject({ param: 'mode', code: 'invalid_value' });
});

test('an empty cb_config is a sound breaker, and a percentage replaces the count', () => {
  expect(CircuitBreakerInput.parse({})).toEqual({
    failuresInRow: 5,
    failureShare: null,
    callsMin: 10,
    cooldownMs: 30_000,
    statuses: null,
  });
  expect(CircuitBreakerInput.parse({ failure_threshold_percentage: 50 })).toMatchObject({
    failuresInRow: null,
    failureShare: 0.5,
  });
  expect(problemOf({ cooldown_interval: 1_000 }, CircuitBreakerInput).param).toBe('cooldown_interval');
});
