import fc from 'fast-check';
import { expect, test } from 'vitest';
import { estimateUsage, type AdmissionRequest, type Spent } from '#libs/calls/admission.ts';
import type { Attempt } from '#libs/calls/call.ts';
import { wholeAmount, type Amount } from '#libs/kernel/amount.ts';
import { LocalCounter } from '#libs/limits/local-counter.ts';
import { newCounter, renewLease, type LimitTerms } from '#libs/limits/counter.ts';
import { outputBoundNames } from '#libs/contracts/calls/output-bounds.ts';
import type { Usage } from '#libs/prices/usage.ts';
import { createUsedAmounts } from './used-amounts.ts';

const target = { provider: 'openai', label: 'openai' } as AdmissionRequest['target'];

/** One cent for each token. */
const pricing = {
  priceOf: (_buyer: unknown, { usage }: { usage: { inputTokens: number; outputTokens: number } | null }) =>
    usage === null ? null : { cents: wholeAmount(usage.inputTokens + usage.outputTokens), version: 'test' },
};
const amounts = createUsedAmounts(pricing, { record: async () => {}, take: async () => null });

function requestOf(body: object, over: Partial<AdmissionRequest> = {}): AdmissionRequest {
  const operation = over.operation ?? 'chat';
  const bytes = Buffer.from(JSON.stringify(body));
  return {
    workspaceId: 'ws_1',
    keyId: null,
    target,
    model: 'm',
    operation,
    work: 'call',
    metadata: null,
    config: null,
    prompt: null,
    waitsForBudget: false,
    estimate: () => estimateUsage({ operation, body: bytes, parsed: body as Record<string, unknown> }),
    otherModels: () => ({ names: [], chooses: null }),
    ...over,
  };
}

const anyNumber = fc.oneof(fc.double(), fc.integer(), fc.constantFrom(-1e9, 1e308, -1e308, Infinity, -Infinity, 0));
const anyBody = fc.dictionary(fc.constantFrom(...outputBoundNames, 'prompt', 'x'), fc.oneof(anyNumber, fc.jsonValue()));

test('whatever numbers a body has, no draw for it lowers what is used', () => {
  const terms: LimitTerms = { max: wholeAmount(2_000), reset: { every: 'never' }, alertAt: null };
  const operations = fc.constantFrom('chat', 'completions', 'responses', 'threads', 'embeddings');
  fc.assert(
    fc.property(fc.array(anyBody, { minLength: 1, maxLength: 5 }), operations, (bodies, operation) => {
      let counter = newCounter(0, 0);
      const local = new LocalCounter('p1');
      const sync = (waiting: Amount) => {
        const renewed = renewLease(counter, terms, local.ask([waiting], 1), 1);
        if (renewed === null) throw new Error('the lease was not renewed');
        expect(renewed.counter.used >= counter.used).toBe(true);
        ({ counter } = renewed);
        local.take(renewed.grant);
        for (const { amount } of Object.values(counter.leases)) expect(amount >= 0n && amount <= terms.max).toBe(true);
      };
      for (const body of bodies) {
        for (const measure of ['tokens', 'cost', 'requests'] as const) {
          const amount = amounts.estimate(measure, requestOf(body, { operation: operation as 'chat' }));
          if (amount === null) throw new Error('there is no estimate');
          expect(amount >= 0n).toBe(true);
          sync(amount);
          const draw = local.draw(amount, 1);
          if (draw !== null) local.settle(draw, amount, true);
          sync(0n);
        }
      }
    }),
  );
});

const tokens = (inputTokens: number, outputTokens: number): Usage => ({
  inputTokens,
  outputTokens,
  cachedTokens: 0,
  reasoningTokens: 0,
});
const attemptOf = (over: Partial<Attempt>): Attempt => ({
  startedAt: 0,
  durationMs: 0,
  status: null,
  errorCode: null,
  ...over,
});
const lost = attemptOf({ isLost: true });
const refused = attemptOf({ status: 503 });
const ok = attemptOf({ status: 200 });
const paid = attemptOf({ status: 200, paid: { responseModel: 'm', usage: tokens(3, 2) } });
/** The estimate of the request: a quarter of its 37 bytes, and its output limit. */
const reserved = 10 + 100;

test.each<[string, Partial<Spent>, amount: number, unconfirmed: number]>([
  ['an answer', { attempts: [paid], status: 200, usage: tokens(3, 2) }, 5, 0],
  ['a refusal', { attempts: [refused, refused], status: 503 }, 0, 0],
  ['an answer from the cache', { attempts: [], status: 200, usage: tokens(3, 2) }, 0, 0],
  ['an answer without usage', { attempts: [ok], status: 200 }, reserved, reserved],
  ['a request whose answer was lost', { attempts: [lost] }, reserved, reserved],
  ['each of several such requests', { attempts: [lost, refused, lost] }, 2 * reserved, 2 * reserved],
  [
    'one of them beside an answer',
    { attempts: [lost, paid], status: 200, usage: tokens(3, 2) },
    reserved + 5,
    reserved,
  ],
  ['a stream', { attempts: [ok], status: 200, usage: tokens(9, 5) }, 14, 0],
  [
    'a stream that broke off',
    { attempts: [ok], status: 200, usage: tokens(9, 5), isPartial: true },
    reserved,
    reserved - 14,
  ],
  ['a long one', { attempts: [ok], status: 200, usage: tokens(9, 500), isPartial: true }, 509, 0],
])('%s counts', (_what, spent, amount, unconfirmed) => {
  const request = requestOf({ model: 'm', max_tokens: 100, x: 'xxx' });
  const whole: Spent = { usage: null, attempts: [], status: null, model: null, ...spent };
  for (const measure of ['tokens', 'cost'] as const) {
    const used = amounts.used(measure, request, whole);
    expect(used).toEqual({ amount: wholeAmount(amount), unconfirmed: wholeAmount(unconfirmed) });
  }
});
