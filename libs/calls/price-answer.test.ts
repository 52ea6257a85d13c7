import { expect, test } from 'vitest';
import { one } from '#libs/kernel/amount.ts';
import type { Purchase } from '#libs/prices/price-usage.ts';
import type { PaidAnswer } from './call.ts';
import { priceAnswer } from './price-answer.ts';

const usage = { inputTokens: 1, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 };
const to = { target: { provider: 'openai', integration: 'shared' }, model: 'requested' };

test.each([
  ['a known', { cents: one, version: 'v1' }],
  ['an unknown', null],
])('%s price of an answer is computed once', (_what, price) => {
  const asked: [object, Purchase][] = [];
  const pricing = {
    priceOf(buyer: object, purchase: Purchase) {
      asked.push([buyer, purchase]);
      return price;
    },
  };
  const paid: PaidAnswer = { responseModel: 'answered', usage };
  expect(priceAnswer(pricing, 'ws_1', to, paid)).toBe(price);
  expect(priceAnswer(pricing, 'ws_1', to, paid)).toBe(price);
  const models = ['answered', 'requested', null];
  expect(asked).toEqual([
    [
      { workspaceId: 'ws_1', integration: 'shared' },
      { provider: 'openai', models, usage },
    ],
  ]);
});
