import { describe, expect, test } from 'vitest';
import { formatAmount } from '#libs/kernel/amount.ts';
import { compileAdjustments, type PricingAdjustments } from './adjustments.ts';
import { builtInPrices } from './built-in-prices.ts';
import { contentHash, createOwnPrice, createPriceTable, PriceTableDocument, type ModelRow } from './price-table.ts';
import { priceUsage, type Purchase } from './price-usage.ts';
import type { Usage } from './usage.ts';

const list = (models: Record<string, ModelRow>) =>
  createPriceTable({ date: '2026-01-01', providers: { acme: { source: 'a test', as_of: '2026-01-01', models } } });

const used = (usage: Partial<Usage>): Usage => ({
  inputTokens: 0,
  cachedTokens: 0,
  outputTokens: 0,
  reasoningTokens: 0,
  ...usage,
});

const table = list({
  plain: { input: '2.50', cached_input: '1.25', output: '10' },
  thinker: { input: '1', output: '4', reasoning: '3' },
  writer: { input: '3', cached_input: '0.30', cache_write: '3.75', cache_write_1h: '6', output: '15' },
  listener: {
    input: '2.50',
    cached_input: '1',
    output: '10',
    audio_input: '40',
    cached_audio_input: '0.5',
    audio_output: '80',
    image_input: '5',
    image_output: '20',
  },
  long: {
    input: '1',
    output: '2',
    tiers: [
      { above_input_tokens: 400_000, input: '8', output: '9' },
      { above_input_tokens: 200_000, input: '4' },
    ],
  },
  tiered: { input: '10', cached_input: '1', output: '20', service_tiers: { flex: '0.5', priority: { output: '40' } } },
  searcher: { input: '1', output: '2', per_search: '0.01' },
  ranker: { per_search: '0.002' },
  embedder: { input: '0.02' },
  painter: { per_image: { 'hd 1024x1024': '0.08', any: '0.04' } },
  speaker: { per_million_characters: '15' },
  transcriber: { per_hour: '0.36' },
  moderator: { per_call: '0' },
});

const cents = (model: string, bought: Partial<Purchase>, adjustments: PricingAdjustments[] = []) => {
  const purchase = { provider: 'acme', models: [model], usage: null, ...bought };
  const price = priceUsage(table, purchase, adjustments.map(compileAdjustments));
  return price === null ? null : formatAmount(price.cents);
};

describe('the savings of a prompt cache', () => {
  const million = 1_000_000;
  const saved = (model: string, usage: Partial<Usage>, adjustments: PricingAdjustments[] = []) => {
    const purchase = { provider: 'acme', models: [model], usage: used(usage) };
    const price = priceUsage(table, purchase, adjustments.map(compileAdjustments));
    return price?.promptCacheSaved === undefined ? null : formatAmount(price.promptCacheSaved);
  };
  test.each<[string, string, Partial<Usage>, string | null]>([
    ['are absent without a cache', 'plain', { inputTokens: million }, null],
    ['of reading are the difference of both prices', 'plain', { inputTokens: million, cachedTokens: 400_000 }, '50'],
    ['of writing are negative', 'writer', { inputTokens: million, cacheWriteTokens: million }, '-75'],
    [
      'of reading and writing are added',
      'writer',
      { inputTokens: million, cachedTokens: 400_000, cacheWriteTokens: 300_000, cacheWriteHourTokens: 100_000 },
      '63', // 400,000 at 2.70 dollars per million, minus 200,000 at 0.75 and 100,000 at 3.
    ],
    [
      'include audio at its own prices',
      'listener',
      { inputTokens: million, audioInputTokens: million, cachedTokens: million, cachedAudioTokens: million },
      '3950',
    ],
    [
      'have the discount of a service tier',
      'tiered',
      { inputTokens: million, cachedTokens: million, serviceTier: 'flex' },
      '450',
    ],
    ['are unknown if the call has no known price', 'unknown', { inputTokens: million, cachedTokens: million }, null],
  ])('%s', (_what, model, usage, expected) => expect(saved(model, usage)).toBe(expected));
});

describe('what is priced', () => {
  const million = 1_000_000;
  test.each<[string, string, Partial<Purchase>, string | null]>([
    ['input and output', 'plain', { usage: used({ inputTokens: 1_000, outputTokens: 500 }) }, '0.75'],
    [
      'a part of the input that the provider had in its cache',
      'plain',
      { usage: used({ inputTokens: 1_000, cachedTokens: 400 }) },
      '0.2',
    ],
    ['reasoning at the price of output', 'plain', { usage: used({ outputTokens: 1_000, reasoningTokens: 900 }) }, '1'],
    [
      'reasoning at a price of its own',
      'thinker',
      { usage: used({ outputTokens: 1_000, reasoningTokens: 900 }) },
      '0.31',
    ],
    [
      'what is written to the cache, for five minutes and for an hour',
      'writer',
      {
        usage: used({ inputTokens: 10_000, cachedTokens: 1_000, cacheWriteTokens: 3_000, cacheWriteHourTokens: 1_000 }),
      },
      // 6,000 × 3 + 1,000 × 0.30 + 2,000 × 3.75 + 1,000 × 6 dollars for a million
      '3.18',
    ],
    [
      'audio and images',
      'listener',
      {
        usage: used({
          inputTokens: 1_000,
          cachedTokens: 300,
          audioInputTokens: 500,
          cachedAudioTokens: 200,
          imageInputTokens: 100,
          outputTokens: 600,
          audioOutputTokens: 400,
          imageOutputTokens: 100,
        }),
      },
      // 300 × 2.5 + 100 × 1 + 200 × 0.5 + 300 × 40 + 100 × 5 + 100 × 10 + 400 × 80 + 100 × 20
      '4.845',
    ],
    [
      'a long input by its tier, all of it',
      'long',
      { usage: used({ inputTokens: 200_001, outputTokens: 10 }) },
      '80.0024',
    ],
    [
      'an input up to the bound of a tier',
      'long',
      { usage: used({ inputTokens: 200_000, outputTokens: 10 }) },
      '20.002',
    ],
    [
      'a longer input by the highest tier',
      'long',
      { usage: used({ inputTokens: million, outputTokens: million }) },
      '1700',
    ],
    [
      'a class of service by its factor',
      'tiered',
      { usage: used({ inputTokens: million, serviceTier: 'flex' }) },
      '500',
    ],
    [
      'a class of service by its own prices',
      'tiered',
      { usage: used({ inputTokens: million, outputTokens: million, serviceTier: 'priority' }) },
      '5000',
    ],
    ['the standard class', 'tiered', { usage: used({ inputTokens: million, serviceTier: 'default' }) }, '1000'],
    ['a class whose price is not known', 'tiered', { usage: used({ inputTokens: 1, serviceTier: 'turbo' }) }, null],
    ['searches beside tokens', 'searcher', { usage: used({ inputTokens: 100 }), units: { searches: 3 } }, '3.01'],
    ['no searches where none is counted beside tokens', 'searcher', { usage: used({ inputTokens: 100 }) }, '0.01'],
    ['searches alone', 'ranker', { units: { searches: 2 } }, '0.4'],
    ['searches alone that nobody counted', 'ranker', {}, null],
    ['embeddings', 'embedder', { usage: used({ inputTokens: 12_345 }) }, '0.02469'],
    ['tokens that have no price', 'embedder', { usage: used({ inputTokens: 1, outputTokens: 1 }) }, null],
    ['tokens that nobody counted', 'plain', {}, null],
    ['no tokens', 'plain', { usage: used({}) }, '0'],
    ['images by quality and size', 'painter', { units: { images: { count: 2, kind: 'hd 1024x1024' } } }, '16'],
    ['other images', 'painter', { units: { images: { count: 3, kind: 'low 1x1' } } }, '12'],
    ['images that nobody counted', 'painter', {}, null],
    ['characters', 'speaker', { units: { characters: 1_234 } }, '1.851'],
    ['seconds of audio, to a billionth of a cent', 'transcriber', { units: { seconds: 7 } }, '0.07'],
    ['seconds that do not come out even', 'transcriber', { units: { seconds: 0.1 / 3 } }, '0.000333333333'],
    ['what is free', 'moderator', {}, '0'],
    ['a model without a price', 'newest', { usage: used({ inputTokens: 1 }) }, null],
  ])('%s', (_what, model, bought, expected) => expect(cents(model, bought)).toBe(expected));

  test('the model that answered comes before the one that was asked for', () => {
    expect(cents('', { models: ['thinker', 'plain'], usage: used({ inputTokens: million }) })).toBe('100');
    expect(cents('', { models: ['a deployment', 'plain'], usage: used({ inputTokens: million }) })).toBe('250');
    expect(cents('', { models: [null, 'plain'], usage: used({ inputTokens: million }) })).toBe('250');
  });

  test('a provider without a list has no prices', () => {
    expect(priceUsage(table, { provider: 'other', models: ['plain'], usage: used({ inputTokens: 1 }) })).toBeNull();
  });

  test('ten million small calls cost exactly ten million times one of them', () => {
    const one = priceUsage(table, {
      provider: 'acme',
      models: ['plain'],
      usage: used({ inputTokens: 1, outputTokens: 3 }),
    });
    expect(formatAmount((one?.cents ?? 0n) * 10_000_000n)).toBe('32500');
  });
});

describe('adjustments', () => {
  const usage = used({ inputTokens: 1_000, cachedTokens: 400, outputTokens: 100 });

  test('a multiplier counts for all components, or for one', () => {
    expect(cents('plain', { usage })).toBe('0.3');
    expect(cents('plain', { usage }, [{ multiplier: { default: '1.1' } }])).toBe('0.33');
    expect(cents('plain', { usage }, [{ multiplier: { response_token: '2' } }])).toBe('0.4');
    expect(cents('plain', { usage }, [{ multiplier: { default: '0', response_token: '1' } }])).toBe('0.1');
    expect(cents('ranker', { units: { searches: 1 } }, [{ multiplier: { default: '3' } }])).toBe('0.6');
  });

  test('those of an integration and of a workspace multiply', () => {
    expect(cents('plain', { usage }, [{ multiplier: { default: '0.5' } }, { multiplier: { default: '1.2' } }])).toBe(
      '0.18',
    );
  });

  test('an own price in cents a token replaces the listed one, for models without one too', () => {
    const own = { models: { 'my-model': { request_token: '0.001', response_token: '0.002' } } };
    expect(cents('my-model', { usage }, [own])).toBe('1.2');
    expect(cents('plain', { usage }, [own])).toBe('0.3');
    expect(cents('plain', { usage }, [{ models: { plain: { request_token: '0' } } }])).toBeNull();
    expect(cents('my-model', { usage }, [own, { multiplier: { default: '2' } }])).toBe('2.4');
  });

  test('they are part of the version', () => {
    const version = (adjustments: PricingAdjustments[]) =>
      priceUsage(table, { provider: 'acme', models: ['plain'], usage }, adjustments.map(compileAdjustments))?.version;
    expect(version([])).toBe(table.version);
    expect(version([{ multiplier: { default: '1' } }])).toMatch(/^2026-01-01\.[0-9a-f]{12}\+[0-9a-f]{12}$/);
  });
});

describe('a list', () => {
  test('has a version that depends on its content and not on the order of its members', () => {
    const reordered = list({ b: { output: '2', input: '1' }, a: { input: '1' } });
    expect(list({ a: { input: '1' }, b: { input: '1', output: '2' } }).version).toBe(reordered.version);
    expect(list({ a: { input: '1' } }).version).not.toBe(list({ a: { input: '2' } }).version);
    expect(contentHash({ a: [1, 2] })).not.toBe(contentHash({ a: [2, 1] }));
  });

  test.each<[string, object]>([
    ['two prices for one model', { models: { a: { input: '1' }, b: { input: '1', also: ['A'] } } }],
    ['a provider that it includes and does not have', { models: {}, includes: ['nobody'] }],
  ])('is refused with %s', (_what, provider) => {
    const document = PriceTableDocument.parse({
      date: '2026-01-01',
      providers: { acme: { source: 'a test', as_of: '2026-01-01', ...provider } },
    });
    expect(() => createPriceTable(document)).toThrow(/acme/);
  });

  test.each([{ input: 2.5 }, { input: '-1' }, { input: '1e3' }, { inputs: '1' }])(
    'is refused with the price %j',
    (row) => {
      const providers = { acme: { source: 'a test', as_of: '2026-01-01', models: { a: row } } };
      expect(PriceTableDocument.safeParse({ date: '2026-01-01', providers }).success).toBe(false);
    },
  );
});

// The prices of the lists themselves are not repeated here. These tests only check that each name finds the intended
// row.
describe('a model of the built-in list is found by the name that its provider uses', () => {
  test.each([
    ['openai', 'gpt-4o-2024-08-06', 'openai', 'gpt-4o'],
    ['openai', 'gpt-4o-2024-05-13', 'openai', 'gpt-4o-2024-05-13'],
    ['openai', 'GPT-4.1-mini-2025-04-14', 'openai', 'gpt-4.1-mini'],
    ['openai', 'ft:gpt-4o-mini-2024-07-18:acme::BvXyz', 'openai', 'ft:gpt-4o-mini'],
    ['openai', 'omni-moderation-latest', 'openai', 'omni-moderation'],
    ['azure', 'gpt-4o-mini-2024-07-18', 'openai', 'gpt-4o-mini'],
    ['anthropic', 'claude-3-5-haiku-latest', 'anthropic', 'claude-3-5-haiku'],
    ['anthropic', 'claude-sonnet-4-20250514', 'anthropic', 'claude-sonnet-4'],
    ['bedrock', 'us.anthropic.claude-3-5-sonnet-20241022-v2:0', 'anthropic', 'claude-3-5-sonnet'],
    [
      'bedrock',
      'arn:aws:bedrock:us-east-1:123456789012:inference-profile/eu.amazon.nova-lite-v1:0',
      'bedrock',
      'amazon.nova-lite',
    ],
    ['bedrock', 'meta.llama3-1-8b-instruct-v1:0', 'bedrock', 'meta.llama3-1-8b-instruct'],
    ['vertex', 'claude-3-5-sonnet-v2@20241022', 'anthropic', 'claude-3-5-sonnet'],
    ['vertex', 'publishers/google/models/gemini-2.0-flash-001', 'gemini', 'gemini-2.0-flash'],
    ['gemini', 'models/gemini-2.5-pro', 'gemini', 'gemini-2.5-pro'],
    ['mistral', 'mistral-small-latest', 'mistral', 'mistral-small'],
    ['groq', 'openai/gpt-oss-20b', 'groq', 'openai/gpt-oss-20b'],
    ['together', 'meta-llama/Llama-3.3-70B-Instruct-Turbo', 'together', 'meta-llama/llama-3.3-70b-instruct-turbo'],
    ['fireworks', 'accounts/fireworks/models/deepseek-v3', 'fireworks', 'deepseek-v3'],
    ['openrouter', 'anthropic/claude-sonnet-4.5', 'anthropic', 'claude-sonnet-4-5'],
    ['openrouter', 'openai/gpt-4o', 'openai', 'gpt-4o'],
  ])('%s %s', (provider, model, listedBy, row) => {
    const listed = builtInPrices.find(listedBy, row);
    expect(listed).not.toBeNull();
    expect(builtInPrices.find(provider, model)).toBe(listed);
  });

  test.each([
    ['openai', 'gpt-99'],
    ['openai', 'ft:gpt-5:acme::x'],
    ['openai', 'gpt-4o-mini-next'],
    ['gemini', 'gemini-2.5-flash-preview-04-17'],
    ['openrouter', 'openai/gpt-4o:free'],
    ['vllm', 'gpt-4o'],
  ])('%s %s has no price', (provider, model) => expect(builtInPrices.find(provider, model)).toBeNull());
});

test('the price of a public model replaces listed and adjusted ones, and factors still apply', () => {
  const ownPrice = createOwnPrice({ input: '7' });
  const purchase: Purchase = { provider: 'acme', models: ['plain'], usage: used({ inputTokens: 1_000_000 }), ownPrice };
  const own = priceUsage(table, purchase);
  expect(own && formatAmount(own.cents)).toBe('700');
  expect(own?.version).toBe(ownPrice.version);
  const doubled = compileAdjustments({ multiplier: { default: '2' }, models: { plain: { request_token: '1' } } });
  const both = priceUsage(table, purchase, [doubled]);
  expect(both && formatAmount(both.cents)).toBe('1400');
});
