import { Big } from 'big.js';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { formatAmount } from '#libs/kernel/amount.ts';
import { compileAdjustments, type PricingAdjustments } from './adjustments.ts';
import { createPriceTable } from './price-table.ts';
import { priceUsage } from './price-usage.ts';
import type { Units, Usage } from './usage.ts';

// Costs are computed in integers. These tests compute them again in decimals, step by step as they are defined.

const decimal = (whole: number, decimals: number) =>
  fc
    .tuple(fc.nat(10 ** whole - 1), fc.stringMatching(new RegExp(`^\\d{0,${decimals}}$`)))
    .map(([before, after]) => (after === '' ? String(before) : `${before}.${after}`));
const optional = <Value>(value: fc.Arbitrary<Value>) => fc.option(value, { nil: undefined });
const dollars = decimal(6, 8);
const factor = decimal(3, 15);

const row = fc.record({
  input: dollars,
  cached_input: dollars,
  output: dollars,
  reasoning: dollars,
  discount: optional(decimal(1, 8)),
  per_call: optional(dollars),
  per_search: optional(dollars),
  per_hour: optional(dollars),
  per_million_characters: optional(dollars),
  image: optional(dollars),
});
type Row = typeof row extends fc.Arbitrary<infer Value> ? Value : never;

const tokens = fc.oneof(fc.nat(2_000_000), fc.nat(100));
const usage = fc
  .record({ input: tokens, cached: tokens, output: tokens, reasoning: tokens })
  .map(({ input, cached, output, reasoning }) => ({
    inputTokens: input + cached,
    cachedTokens: cached,
    outputTokens: output + reasoning,
    reasoningTokens: reasoning,
  }));
const units = fc.record({
  searches: fc.nat(100),
  seconds: fc.oneof(fc.nat(100_000), fc.double({ min: 0, max: 1_000_000, noNaN: true })),
  characters: fc.nat(1_000_000),
  images: fc.record({ count: fc.integer({ min: 1, max: 10 }), kind: fc.constant('hd') }),
});
const adjustment = fc.record({
  default: optional(factor),
  request_token: optional(factor),
  response_token: optional(factor),
  reasoning_token: optional(factor),
});
type Factors = typeof adjustment extends fc.Arbitrary<infer Value> ? Value : never;

const withoutAbsent = <Value extends object>(value: Value) =>
  Object.fromEntries(Object.entries(value).filter(([, each]) => each !== undefined)) as Value;

function price(given: Row, used: Usage, sold: Units, factors: readonly Factors[]): string | undefined {
  const { discount, image, ...others } = given;
  const model = {
    ...withoutAbsent(others),
    ...(discount === undefined ? {} : { service_tiers: { flex: discount } }),
    ...(image === undefined ? {} : { per_image: { any: image } }),
  };
  const table = createPriceTable({
    date: '2026-01-01',
    providers: { acme: { source: 'a test', as_of: '2026-01-01', models: { m: model } } },
  });
  const adjustments = factors.map((multiplier) =>
    compileAdjustments({ multiplier: withoutAbsent(multiplier) } as PricingAdjustments),
  );
  const tier = discount === undefined ? {} : { serviceTier: 'flex' };
  const found = priceUsage(
    table,
    { provider: 'acme', models: ['m'], usage: { ...used, ...tier }, units: sold },
    adjustments,
  );
  return found === null ? undefined : formatAmount(found.cents);
}

function priceInDecimals(given: Row, used: Usage, sold: Required<Units>, factors: readonly Factors[]): string {
  const multiply = (cents: Big, factorOf: (each: Factors) => string | undefined): Big =>
    factors.reduce((sum, each) => sum.times(factorOf(each) ?? 1), cents);
  const cost = (count: number, dollarsPerMillion: string, factorOf: (each: Factors) => string | undefined): Big =>
    multiply(new Big(dollarsPerMillion).times('0.0001').times(count), (each) => factorOf(each) ?? each.default);
  const ofTokens = cost(used.inputTokens - used.cachedTokens, given.input, (each) => each.request_token)
    .plus(cost(used.cachedTokens, given.cached_input, () => undefined))
    .plus(cost(used.outputTokens - used.reasoningTokens, given.output, (each) => each.response_token))
    .plus(cost(used.reasoningTokens, given.reasoning, (each) => each.reasoning_token))
    .times(given.discount ?? 1);
  const cents = (listed = '0'): Big => new Big(listed).times(100);
  const ofUnits = cents(given.per_call)
    .plus(cents(given.per_search).times(sold.searches))
    .plus(cents(given.per_hour).times(sold.seconds).div(3_600))
    .plus(cents(given.per_million_characters).times(sold.characters).div(1_000_000))
    .plus(cents(given.image).times(sold.images.count));
  return ofTokens
    .plus(multiply(ofUnits, (each) => each.default))
    .round(12, Big.roundHalfUp)
    .toFixed();
}

test('every cost is the one that decimals have, to the last digit', () => {
  fc.assert(
    fc.property(row, usage, units, fc.array(adjustment, { maxLength: 2 }), (given, used, sold, factors) => {
      expect(price(given, used, sold, factors)).toBe(priceInDecimals(given, used, sold, factors));
    }),
    { numRuns: 2_000 },
  );
});

test('so are the costs of calls that only have tokens', () => {
  fc.assert(
    fc.property(row, usage, (given, used) => {
      const { input, cached_input, output, reasoning } = given;
      const own = { input, cached_input, output, reasoning } as Row;
      const none = { searches: 0, seconds: 0, characters: 0, images: { count: 1, kind: 'hd' } };
      expect(price(own, used, {}, [])).toBe(priceInDecimals(own, used, none, []));
    }),
    { numRuns: 2_000 },
  );
});
