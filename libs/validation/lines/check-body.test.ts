import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { z } from 'zod';
import type { BatchEndpoint } from '#libs/contracts/batches/batches.ts';
import { ChatCompletionRequest } from '#libs/contracts/calls/chat.ts';
import { CompletionRequest } from '#libs/contracts/calls/completions.ts';
import { EmbeddingRequest } from '#libs/contracts/calls/embeddings.ts';
import { outputBoundNames } from '#libs/contracts/calls/output-bounds.ts';
import { parseWith, tryParse } from '#libs/contracts/parse.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { checkBody, createBodyCheck } from './check-body.ts';

type Tree = Record<string, unknown>;

/** Endpoints whose bodies have a contract. The bodies of all others are JSON objects with a model. */
type Endpoint = Extract<BatchEndpoint, '/v1/chat/completions' | '/v1/completions' | '/v1/embeddings'>;

const schemas: Record<Endpoint, z.ZodType> = {
  '/v1/chat/completions': ChatCompletionRequest,
  '/v1/completions': CompletionRequest,
  '/v1/embeddings': EmbeddingRequest,
};

function liveVerdict(endpoint: Endpoint, body: unknown) {
  const parsed = tryParse(schemas[endpoint], body, 'body');
  return parsed.ok ? null : parsed.problem;
}

// Valid bodies that use every field. Random ones are parts of these, with up to three changes.
const call = { id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } };
const definition = { name: 'f', description: 'd', parameters: { type: 'object' } };
const sampling = {
  frequency_penalty: 1,
  logit_bias: { '50256': -100 },
  max_tokens: 5,
  n: 2,
  presence_penalty: -2,
  seed: 2 ** 63,
  stop: ['a', 'b'],
  stream: true,
  stream_options: { include_usage: true },
  temperature: 0.5,
  top_p: 1,
  user: 'u',
  anything: { else: [null] },
};
const whole: Record<Endpoint, Tree> = {
  '/v1/chat/completions': {
    ...sampling,
    model: 'm',
    messages: [
      { role: 'system', content: 'x', name: 's' },
      { role: 'developer', content: [{ type: 'text', text: 'x' }] },
      { role: 'user', content: [{ type: 'image_url', image_url: { url: 'u' } }, { type: 'input_audio' }] },
      { role: 'assistant', content: null, tool_calls: [call], function_call: call.function },
      { role: 'tool', content: 'x', tool_call_id: 'c' },
      { role: 'function', content: null, name: 'f' },
    ],
    logprobs: true,
    top_logprobs: 20,
    max_completion_tokens: 9,
    response_format: { type: 'json_schema', json_schema: { name: 'n', schema: {}, strict: true, description: 'd' } },
    thinking: { type: 'enabled', budget_tokens: 1 },
    tools: [{ type: 'function', function: { ...definition, strict: null } }],
    tool_choice: { type: 'function', function: { name: 'f' } },
    parallel_tool_calls: false,
    function_call: { name: 'f' },
    functions: [definition],
  },
  '/v1/completions': { ...sampling, model: 'm', prompt: ['a', 'b'], echo: true, logprobs: 5, suffix: 's' },
  '/v1/embeddings': { model: 'm', input: [[1, 2], [3]], encoding_format: 'float', dimensions: 1, user: 'u' },
};
const needed = ['model', 'messages', 'prompt', 'input'];

// Values of every type and around every limit.
const odd = fc.oneof(
  fc.constantFrom<unknown>(null, true, false, '', 'x', 'auto', 'none', 'float', 'user', 'text', 'function', 'a b', 'ü'),
  fc.constantFrom<unknown>(0, 1, 2, 3, 5, 6, 20, 21, 100, 101, 128, 129, -1, -2, -2.1, -101, 0.5, 1.5, 100.5, 2 ** 53),
  fc.constantFrom<unknown>(2 ** 63, -(2 ** 64), 1e300, 'x'.repeat(64), 'x'.repeat(65), '😀'.repeat(40)),
  fc.constantFrom<unknown>(
    [],
    [''],
    ['a', 'b', 'c', 'd'],
    ['a', 'b', 'c', 'd', 'e'],
    [1],
    [[1]],
    [[]],
    [1.5],
    [1, 'a'],
  ),
  fc.constantFrom<unknown>(
    {},
    { type: 'text' },
    { type: 'json_object' },
    { name: 'f' },
    { role: 'user', content: 'x' },
  ),
  fc.jsonValue({ maxDepth: 1 }),
);
type Change = { steps: number[]; value: unknown; remove: boolean };
const change = fc.record({
  steps: fc.array(fc.nat(40), { minLength: 1, maxLength: 6 }),
  value: odd,
  remove: fc.boolean(),
});

/** Follows the steps into the body and changes, removes or adds a member there. */
function apply(tree: Tree, { steps: [step = 0, ...rest], value, remove }: Change): void {
  const keys = Object.keys(tree);
  const key = keys[step % Math.max(1, keys.length)] ?? 'added';
  const child = tree[key];
  if (rest.length > 0 && typeof child === 'object' && child !== null)
    apply(child as Tree, { steps: rest, value, remove });
  else if (remove) delete tree[key];
  else tree[key] = structuredClone(value);
}

const body = (endpoint: Endpoint) =>
  fc.tuple(fc.subarray(Object.keys(whole[endpoint])), fc.array(change, { maxLength: 3 })).map(([keys, changes]) => {
    const picked = Object.entries(whole[endpoint]).filter(([key]) => needed.includes(key) || keys.includes(key));
    const tree = structuredClone(Object.fromEntries(picked));
    for (const one of changes) apply(tree, one);
    return tree;
  });

test.each(Object.keys(schemas) as Endpoint[])(
  'a line of %s gets the verdict and words of the live route',
  (endpoint) => {
    expect(checkBody(endpoint, { ...whole[endpoint] })).toBeNull();
    const seen = { good: 0, bad: 0 };
    fc.assert(
      fc.property(fc.oneof({ weight: 9, arbitrary: body(endpoint) }, odd), (value) => {
        const parsed: unknown = JSON.parse(JSON.stringify(value));
        const live = liveVerdict(endpoint, parsed);
        expect(checkBody(endpoint, parsed)).toEqual(live);
        seen[live === null ? 'good' : 'bad'] += 1;
      }),
      { numRuns: 2_500 },
    );
    expect(seen.good).toBeGreaterThan(200);
    expect(seen.bad).toBeGreaterThan(500);
  },
);

const readRefusal = (check: () => unknown): unknown => {
  try {
    check();
    return null;
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    const { kind, code, message, param } = error;
    return { kind, code, message, param };
  }
};

test.each(Object.keys(schemas) as Endpoint[])(
  'the compiled check of %s rejects what the schema rejects',
  (endpoint) => {
    const check = createBodyCheck(endpoint);
    const seen = { good: 0, bad: 0 };
    fc.assert(
      fc.property(fc.oneof({ weight: 9, arbitrary: body(endpoint) }, odd), (value) => {
        const parsed: unknown = JSON.parse(JSON.stringify(value));
        const refusal = readRefusal(() => parseWith(schemas[endpoint], parsed));
        expect(readRefusal(() => check(parsed))).toEqual(refusal);
        seen[refusal === null ? 'good' : 'bad'] += 1;
      }),
      { numRuns: 1_000 },
    );
    expect(seen.good).toBeGreaterThan(80);
    expect(seen.bad).toBeGreaterThan(200);
  },
);

test('keys named __proto__ do no harm, as on the live route', () => {
  const text =
    '{"model":"m","messages":[{"role":"user","content":"x"}],"logit_bias":{"__proto__":500},"__proto__":{"n":0}}';
  const parsed: unknown = JSON.parse(text);
  expect(liveVerdict('/v1/chat/completions', parsed)).toBeNull();
  expect(checkBody('/v1/chat/completions', parsed)).toBeNull();
});

const inputs = { messages: [{ role: 'user', content: 'x' }], prompt: 'x', input: 'x' };
const forwarded = ['/v1/responses', '/v1/moderations', '/v1/images/generations'] as const;
const boundsOf: [BatchEndpoint, name: string, min: number][] = [
  ...['max_tokens', 'max_completion_tokens', 'n'].map((name) => ['/v1/chat/completions', name, 1] as never),
  // As in OpenAI's reference, 0 asks for the probabilities of the prompt alone.
  ...['max_tokens', 'best_of'].map((name) => ['/v1/completions', name, 0] as never),
  ['/v1/completions', 'n', 1],
  ...forwarded.flatMap((endpoint) => outputBoundNames.map((name) => [endpoint, name, 1] as never)),
];

test('no endpoint takes a bound below its minimum, or one that is not a whole number', () => {
  const badNumber = fc.oneof(
    fc.integer({ max: -1 }),
    fc.double({ noInteger: true, noNaN: true }),
    fc.constantFrom(-1e9, 1e308, -1e308, Infinity, -Infinity, 2 ** 53),
  );
  fc.assert(
    fc.property(fc.constantFrom(...boundsOf), badNumber, ([endpoint, name, min], number) => {
      const param = `body.${name}`;
      expect(checkBody(endpoint, { model: 'm', ...inputs, [name]: number })).toMatchObject({ param });
      expect(checkBody(endpoint, { model: 'm', ...inputs, [name]: min - 1 })).toMatchObject({ param });
      expect(checkBody(endpoint, { model: 'm', ...inputs, [name]: null })).toBeNull();
    }),
  );
});
