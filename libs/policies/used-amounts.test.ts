import { Big } from 'big.js';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { estimateUsage, type AdmissionRequest } from '#libs/calls/admission.ts';
import { LocalCounter } from '#libs/limits/local-counter.ts';
import { newCounter, renewLease, type LimitTerms } from '#libs/limits/counter.ts';
import { outputBoundNames } from '#libs/contracts/output-bounds.ts';
import { createUsedAmounts } from './used-amounts.ts';

const target = { provider: 'openai', label: 'openai' } as AdmissionRequest['target'];

/** One cent for each token. */
const pricing = {
  priceOf: (_buyer: unknown, { usage }: { usage: { inputTokens: number; outputTokens: number } | null }) =>
    usage === null ? null : { cents: new Big(usage.inputTokens + usage.outputTokens), version: 'test' },
};
const amounts = createUsedAmounts(pricing);

function requestOf(body: object, over: Partial<AdmissionRequest> = {}): AdmissionRequest {
  const operation = over.operation ?? 'chat';
  const bytes = Buffer.from(JSON.stringify(body));
  return {
    workspaceId: 'ws_1',
    keyId: null,
    target,
    model: 'm',
    operation,
    metadata: null,
    config: null,
    prompt: null,
    waitsForBudget: false,
    estimate: () => estimateUsage({ operation, body: bytes, parsed: body as Record<string, unknown> }),
    ...over,
  };
}

const anyNumber = fc.oneof(fc.double(), fc.integer(), fc.constantFrom(-1e9, 1e308, -1e308, Infinity, -Infinity, 0));
const anyBody = fc.dictionary(fc.constantFrom(...outputBoundNames, 'prompt', 'x'), fc.oneof(anyNumber, fc.jsonValue()));

test('whatever numbers a body has, no draw for it lowers what is used', () => {
  const terms: LimitTerms = { max: new Big(2_000), reset: { every: 'never' }, alertAt: null };
  const operations = fc.constantFrom('chat', 'completions', 'responses', 'threads', 'embeddings');
  fc.assert(
    fc.property(fc.array(anyBody, { minLength: 1, maxLength: 5 }), operations, (bodies, operation) => {
      let counter = newCounter(0, 0);
      const local = new LocalCounter('p1');
      const sync = (waiting: Big) => {
        const renewed = renewLease(counter, terms, local.ask(waiting, 1), 1);
        if (renewed === null) throw new Error('the lease was not renewed');
        expect(renewed.counter.used.gte(counter.used)).toBe(true);
        ({ counter } = renewed);
        local.take(renewed.grant);
        for (const { amount } of Object.values(counter.leases))
          expect(amount.gte(0) && amount.lte(terms.max)).toBe(true);
      };
      for (const body of bodies) {
        for (const measure of ['tokens', 'cost', 'requests'] as const) {
          const amount = amounts.estimate(measure, requestOf(body, { operation: operation as 'chat' }));
          if (amount === null) throw new Error('there is no estimate');
          expect(amount.gte(0)).toBe(true);
          sync(amount);
          const draw = local.draw(amount, 1);
          if (draw !== null) local.settle(draw, amount, true);
          sync(new Big(0));
        }
      }
    }),
  );
});
