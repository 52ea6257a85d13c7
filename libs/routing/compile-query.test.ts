import { expect, test } from 'vitest';
import type { Query } from '#libs/contracts/config-query.ts';
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
const matches = (query: Query) => compileQuery(query)(call);

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
  // The ancestor ignored what stands beside $or, $and and $regex.
  [{ $or: [{ 'metadata.plan': 'free' }, { 'metadata.plan': 'pro' }], 'params.n': 4 }, false],
  [{ $and: [{ 'metadata.plan': 'pro' }, { 'params.n': 3 }], 'params.model': 'other' }, false],
  [{ 'params.model': { $regex: '^gpt', $ne: 'gpt-5-mini' } }, false],
  [{ $or: [{ $and: [{ 'params.n': 3 }, { 'metadata.plan': 'free' }] }, { 'params.stream': false }] }, true],
])('%j: %s', (query, expected) => {
  expect(matches(query)).toBe(expected);
});

test('a call without metadata meets no condition on it', () => {
  expect(compileQuery({ 'metadata.plan': 'pro' })({ ...call, metadata: null })).toBe(false);
});

test('expressions that take too long for a call find nothing in it, and the next call has its own time', () => {
  const query = { 'params.text': { $regex: 'a[ab]{900}\\d' } };
  const found = compileQuery({ $or: Array.from({ length: 50 }, () => query) });
  const hit = `${'a'.repeat(901)}1`;
  // No stretch of it comes twice, so that nothing an engine remembers of one helps with the next.
  let seed = 1;
  const long = Array.from({ length: 1_000_000 }, () => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed > 1_073_741_824 ? 'a' : 'b';
  }).join('');
  expect(found({ ...call, params: { text: long + hit } })).toBe(false);
  // Several times, because a machine that takes the processor away takes the time of a call with it.
  const calls = Array.from({ length: 20 }, () => found({ ...call, params: { text: hit } }));
  expect(calls).toContain(true);
});
