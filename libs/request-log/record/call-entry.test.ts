import { expect, test } from 'vitest';
import type { Attempt, Target } from '#libs/calls/call.ts';
import { plainPlan } from '#libs/calls/plan/plain-plan.ts';
import { compileConfig } from '#libs/calls/plan/compile-config.ts';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { createPriceTable } from '#libs/prices/price-table.ts';
import { createPricing } from '#libs/prices/pricing.ts';
import type { Usage } from '#libs/prices/usage.ts';
import { createCallCosts } from './call-costs.ts';
import { toLogEntry } from './call-entry.ts';
import type { CallEnd, LoggedTarget, LoggedCall } from './logged-call.ts';

// A cent for a token of input, two for one of output. The second provider charges half.
const source = { source: 'a test', as_of: '2026-01-01' };
const table = createPriceTable({
  date: '2026-01-01',
  providers: {
    first: {
      ...source,
      models: {
        big: { input: '10000', cached_input: '2500', output: '20000' },
        painter: { per_image: { any: '0.04' } },
      },
    },
    second: { ...source, models: { big: { input: '5000', output: '10000' } } },
  },
});

const targetOf = (provider: string, integration?: string): Target =>
  ({ provider, label: `${provider}-key`, ...(integration === undefined ? {} : { integration }) }) as Target;
const [first, second] = [targetOf('first'), targetOf('second', 'shared')];
const tokens = (inputTokens: number, outputTokens: number, more: Partial<Usage> = {}): Usage => ({
  inputTokens,
  cachedTokens: 0,
  outputTokens,
  reasoningTokens: 0,
  ...more,
});
const attempt = (more: Partial<Attempt> = {}): Attempt => ({
  startedAt: 0,
  durationMs: 10,
  status: 200,
  errorCode: null,
  ...more,
});
const paid = (target: Target, usage: Usage): Attempt =>
  attempt({ to: { target, model: 'big' }, paid: { responseModel: null, usage } });

function entryOf(end: Partial<CallEnd>, call: Partial<LoggedTarget> = {}, more: Partial<LoggedCall> = {}) {
  const costs = createCallCosts(createPricing({ table: () => table }));
  const entry = toLogEntry(costs, {
    kind: 'live',
    operation: 'chat',
    method: 'POST',
    requestId: 'req_1',
    userId: 'user_1',
    trace: { traceId: 'trace', spanId: 'span', parentSpanId: 'parent', spanName: 'name' },
    call: {
      workspaceId: 'ws_1',
      keyId: 'key_1',
      metadata: { team: 'blue' },
      pathname: '/v1/chat/completions',
      target: first,
      model: 'big',
      earlierAttempts: [],
      plan: plainPlan,
      ...call,
    },
    stream: false,
    option: null,
    batch: null,
    startedAtMs: 1_000,
    durationMs: 50,
    end: { status: 200, errorCode: null, attempts: [], ...end },
    ...more,
  });
  return { entry, unpriced: Object.fromEntries(costs.unpriced()) };
}

const costOf = (...given: Parameters<typeof entryOf>) => {
  const { entry, unpriced } = entryOf(...given);
  const { cost, saved_cost: saved, is_estimate: isEstimate, price_version: version } = entry;
  return { cost, saved, isEstimate, isPriced: version === table.version, unpriced };
};

test('the savings of the prompt cache are those of every answer that was paid for', () => {
  const usage = tokens(10, 0, { cachedTokens: 4 });
  const savedOf = (...given: Parameters<typeof entryOf>) => entryOf(...given).entry.prompt_cache_saved;
  expect(savedOf({ attempts: [attempt()], usage })).toBe('3');
  expect(savedOf({ attempts: [attempt()], usage }, { earlierAttempts: [paid(first, usage)] })).toBe('6');
  expect(savedOf({ attempts: [attempt()], usage: tokens(9, 1) })).toBeNull();
  // The answer came from the response cache, or has no known price.
  expect(savedOf({ attempts: [], usage })).toBeNull();
  expect(savedOf({ attempts: [attempt()], usage }, { model: 'unknown' })).toBeNull();
});

test('times are kept to the microsecond, without the tail of a fraction in binary', () => {
  const attempts = [attempt({ durationMs: 0.1 }), attempt({ durationMs: 0.2 })];
  const { entry } = entryOf({ attempts, firstEventMs: 1.000_049 }, {}, { durationMs: 1.662_275_000_002_409_8 });
  expect(entry).toMatchObject({ duration_ms: 1.662, upstream_ms: 0.3, first_event_ms: 1 });
  expect(entryOf({}).entry).toMatchObject({ duration_ms: 50, upstream_ms: 0, first_event_ms: null });
});

test('a row has everything that the log is searched by', () => {
  const config = { id: 'config_1', slug: 'main', version: 3 };
  const plan = compileConfig(ConfigInput.parse({ strategy: { mode: 'fallback' }, targets: [{}, {}] }));
  const usage = tokens(9, 1, { cacheWriteTokens: 4, audioInputTokens: 3, audioOutputTokens: 1, serviceTier: 'flex' });
  const { entry } = entryOf(
    { attempts: [attempt({ status: 500 }), attempt()], usage, cacheStatus: 'MISS', units: { searches: 1 } },
    {
      target: second,
      plan,
      config,
      prompt: { id: 'prompt_1', slug: 'greeting', version: 2 },
      earlierAttempts: [attempt({ status: 429 }), attempt({ status: 429 })],
      fallbacks: 1,
      retries: 1,
    },
    { option: 'config.targets[1]' },
  );
  expect(entry).toMatchObject({
    user_id: 'user_1',
    key_id: 'key_1',
    method: 'POST',
    path: '/v1/chat/completions',
    mode: 'fallback',
    config_id: 'config_1',
    config: 'main',
    config_version: 3,
    integration: 'shared',
    prompt_slug: 'greeting',
    prompt_version: 2,
    cache_status: 'MISS',
    attempts: 4,
    retries: 2,
    fallbacks: 1,
    upstream_ms: 40,
    cache_write_tokens: 4,
    audio_input_tokens: 3,
    audio_output_tokens: 1,
    usage_details: { searches: 1, service_tier: 'flex' },
    last_used_option: 'config.targets[1]',
    batch_id: null,
  });
  expect(entryOf({}).entry.usage_details).toBeNull();
});

test.each<[string, Parameters<typeof entryOf>, Partial<ReturnType<typeof costOf>>]>([
  ['an answer', [{ attempts: [paid(first, tokens(3, 2))], usage: tokens(3, 2) }], { cost: '7', isPriced: true }],
  [
    'a stream, whose usage is known at its end',
    [{ attempts: [attempt()], usage: tokens(3, 2) }],
    { cost: '7', isEstimate: false, isPriced: true },
  ],
  [
    'a stream that was cancelled, by what was streamed until then',
    [{ status: 499, attempts: [attempt()], usage: tokens(3, 1), isEstimate: true }],
    { cost: '5', isEstimate: true },
  ],
  [
    'retries: attempts that failed cost nothing',
    [{ attempts: [attempt({ status: 500 }), attempt({ status: 429 }), paid(first, tokens(3, 2))] }],
    { cost: '7', isEstimate: false },
  ],
  [
    'retries of answers that were not good enough: each of them',
    [{ attempts: [paid(first, tokens(3, 2)), paid(first, tokens(3, 2))], usage: tokens(3, 2) }],
    { cost: '14' },
  ],
  [
    'a fallback after an answer that was paid for: both, each at its own price',
    [
      { attempts: [paid(second, tokens(2, 2))], usage: tokens(2, 2) },
      { target: second, earlierAttempts: [paid(first, tokens(3, 2))] },
    ],
    { cost: '10' },
  ],
  [
    'an answer from the cache: nothing, and what it saved is kept apart',
    [{ usage: tokens(3, 2), cacheStatus: 'HIT' }],
    { cost: '0', saved: '7', isPriced: true },
  ],
  [
    'a call that was refused here',
    [{ status: 403, errorCode: 'forbidden' }],
    { cost: '0', saved: null, isPriced: false },
  ],
  ['an error', [{ status: 400, attempts: [attempt({ status: 400 })] }], { cost: '0', isEstimate: false, unpriced: {} }],
  [
    'an answer that was lost here: it was paid for',
    [{ status: 500, errorCode: 'internal_error', attempts: [paid(first, tokens(3, 2))], usage: tokens(3, 2) }],
    { cost: '7' },
  ],
  [
    'a call that was never answered: nobody knows',
    [{ status: 504, attempts: [attempt({ status: null, errorCode: 'upstream_headers_timeout', isLost: true })] }],
    { cost: '0', isEstimate: true },
  ],
  [
    'a call that never reached its provider: nothing',
    [{ status: 502, attempts: [attempt({ status: null, errorCode: 'upstream_unreachable' })] }],
    { cost: '0', isEstimate: false },
  ],
  [
    'a call on a connection that the provider had closed before: only what it took',
    [
      {
        attempts: [attempt({ status: null, errorCode: 'upstream_connection_lost' }), paid(first, tokens(3, 2))],
      },
    ],
    { cost: '7', isEstimate: false },
  ],
  [
    'images, which are not counted in tokens',
    [
      { attempts: [attempt()], units: { images: { count: 2, kind: 'any' } } },
      { model: 'painter' },
      { operation: 'images' },
    ],
    { cost: '8' },
  ],
  [
    'a model without a price: not known, and counted',
    [{ attempts: [attempt()], usage: tokens(3, 2) }, { model: 'new' }],
    { cost: null, unpriced: { first: 1 }, isPriced: false },
  ],
  [
    'an answer without usage: not known, and counted',
    [{ attempts: [attempt()] }],
    { cost: null, unpriced: { first: 1 } },
  ],
  [
    'one attempt of several without a price: not known',
    [{ attempts: [paid(targetOf('third'), tokens(1, 1)), paid(first, tokens(3, 2))] }],
    { cost: null, unpriced: { first: 1 } },
  ],
  [
    'what is only read',
    [{ attempts: [attempt()] }, {}, { method: 'GET' }],
    { cost: '0', isEstimate: false, unpriced: {} },
  ],
])('the cost of %s', (_what, given, expected) => expect(costOf(...given)).toMatchObject(expected));
