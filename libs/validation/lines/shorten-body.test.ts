import { expect, test } from 'vitest';
import { checkBody } from './check-body.ts';
import { shortenBody } from './shorten-body.ts';

const many = (length: number, element: unknown): unknown[] => Array.from({ length }, () => element);

test('a body without long lists is not changed', () => {
  const body = { messages: many(2_100, { role: 'user' }), tools: [{ a: [1, 2] }], user: null };
  expect(shortenBody(body, '/messages/3/role')).toBe(body);
});

test('long lists are cut, but not before the first problem', () => {
  const body = { messages: many(9_000, { content: many(5_000, 1) }), model: 'm' };
  const short = shortenBody(body, '/messages/4000/content') as typeof body;
  expect([short.model, short.messages.length]).toEqual(['m', 4_001]);
  expect((short.messages[0] as { content: unknown[] }).content).toHaveLength(4_001);
  expect((shortenBody(body, '') as typeof body).messages).toHaveLength(2_100);
});

const good = { role: 'user', content: 'x' };
const bad = { role: 'nobody' };

test.each([
  ['all are bad', many(20_000, bad), 'body.messages[0].role'],
  ['the last ones are bad', [...many(3_000, good), ...many(17_000, bad)], 'body.messages[3000].role'],
])('the first problem of a long list is reported with its position: %s', (_what, messages, param) => {
  expect(checkBody('/v1/chat/completions', { model: 'm', messages })).toMatchObject({ code: 'invalid_value', param });
});

test('a list that is too long is reported with its own length', () => {
  const problem = checkBody('/v1/embeddings', { model: 'm', input: many(5_000, 'x') });
  expect(problem?.message).toContain('length 5000');
});

test('a long map is cut, but keeps the member of the first problem', () => {
  const bias = Object.fromEntries(
    Array.from({ length: 5_000 }, (_, index) => [`${index}/x`, index === 4_000 ? 1_000 : 0]),
  );
  const short = shortenBody({ logit_bias: bias }, '/logit_bias/4000~1x') as { logit_bias: object };
  expect(Object.keys(short.logit_bias)).toHaveLength(2_101);
  const body = { model: 'm', messages: [good], logit_bias: bias };
  expect(checkBody('/v1/chat/completions', body)).toMatchObject({ param: 'body.logit_bias.4000/x' });
});
