import { expect, test } from 'vitest';
import type { Query } from '#libs/contracts/configs/config-query.ts';
import { compilePattern } from '#libs/calls/protect/guardrails/checks/text-checks.ts';
import { compileQuery } from './compile-query.ts';

const call = {
  params: {
    model: 'gpt-5-mini',
    n: 3,
    stream: false,
    messages: [
      { role: 'system', content: 'x' },
      { role: 'user', content: [{ type: 'text', text: 'Bonjour' }] },
    ],
    user: null,
  },
  metadata: { plan: 'pro', seats: '12', 'a.b': 'dotted' },
  pathname: '/v1/chat/completions',
};
const search = (rule: string, text: string): boolean => compilePattern(rule)(text);
const matches = (query: Query) => compileQuery(query)(call, search);

test.each<[Query, boolean]>([
  [{ 'metadata.plan': 'pro' }, true],
  [{ 'metadata.plan': { $eq: 'free' } }, false],
  [{ 'metadata.nothing': { $eq: 'pro' } }, false],
  [{ 'metadata.nothing': { $ne: 'pro' } }, true],
  [{ 'metadata.a.b': 'dotted' }, true],
  [{ 'metadata.seats': 12 }, true],
  [{ 'metadata.seats': { $gt: 9 } }, true],
  [{ 'metadata.seats': { $lt: '9' } }, false],
  [{ 'metadata.toString': { $regex: '' } }, false],
  [{ 'params.n': { $gte: 3, $lte: 3 } }, true],
  [{ 'params.n': { $gte: 3, $lt: 3 } }, false],
  [{ 'params.model': { $gt: 'gpt-4' } }, true],
  [{ 'params.n': { $gt: 'a' } }, false],
  [{ 'params.stream': false }, true],
  [{ 'params.user': null }, true],
  [{ 'params.nothing': null }, false],
  [{ 'params.model': { $in: ['a', 'gpt-5-mini'] } }, true],
  [{ 'params.model': { $nin: ['a', 'gpt-5-mini'] } }, false],
  [{ 'params.model': { $regex: '^gpt-\\d' } }, true],
  [{ 'params.model': { $regex: '(?i)MINI$' } }, true],
  [{ 'params.n': { $regex: '3' } }, false],
  [{ 'params.messages[1].content[0].text': { $regex: '^Bon' } }, true],
  [{ 'params.messages.1.content.0.text': 'Bonjour' }, true],
  [{ 'params.messages[9].role': 'user' }, false],
  [{ 'url.pathname': '/v1/chat/completions' }, true],
  // Portkey ignores members next to $or, $and and $regex.
  [{ $or: [{ 'metadata.plan': 'free' }, { 'metadata.plan': 'pro' }], 'params.n': 4 }, false],
  [{ $and: [{ 'metadata.plan': 'pro' }, { 'params.n': 3 }], 'params.model': 'other' }, false],
  [{ 'params.model': { $regex: '^gpt', $ne: 'gpt-5-mini' } }, false],
  [{ $or: [{ $and: [{ 'params.n': 3 }, { 'metadata.plan': 'free' }] }, { 'params.stream': false }] }, true],
])('%j: %s', (query, expected) => {
  expect(matches(query)).toBe(expected);
});

test('a call without metadata meets no condition on it', () => {
  expect(compileQuery({ 'metadata.plan': 'pro' })({ ...call, metadata: null }, search)).toBe(false);
});

test('an expression that is searched for elsewhere is awaited, with "and" and with "or"', async () => {
  const later = async (rule: string, text: string) => search(rule, text);
  const ask = (query: Query) => compileQuery(query)(call, later);
  const [hit, miss] = [{ 'params.model': { $regex: '^gpt' } }, { 'params.model': { $regex: 'x' } }];
  expect(await ask({ $or: [miss, hit] })).toBe(true);
  expect(await ask({ $or: [miss, miss] })).toBe(false);
  expect(await ask({ $and: [hit, hit], 'params.n': 3 })).toBe(true);
  expect(await ask({ $and: [hit, miss] })).toBe(false);
  expect(await ask({ ...hit, 'params.n': 4 })).toBe(false);
});

test('a query without expressions waits for nothing, and neither does one whose search answers at once', () => {
  expect(matches({ 'params.n': 3, 'params.model': { $regex: 'gpt' } })).toBe(true);
});
