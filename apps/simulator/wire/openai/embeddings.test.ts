import type OpenAI from 'openai';
import { expect, test } from 'vitest';
import { startTestSimulator, type Json } from '#test/test-simulator.ts';

const { post } = await startTestSimulator();
const embed = async (fields: Json) => {
  const response = await post('/v1/embeddings', { model: 'sim-embedding', ...fields });
  expect(response.status).toBe(200);
  return (await response.json()) as OpenAI.CreateEmbeddingResponse;
};

test('vectors are of unit length, of the asked length, and the same for the same text', async () => {
  const { data, usage, object, model } = await embed({ input: ['one', 'two', 'one'] });
  expect({ object, model }).toEqual({ object: 'list', model: 'sim-embedding' });
  expect(data.map(({ index, object }) => [index, object])).toEqual([
    [0, 'embedding'],
    [1, 'embedding'],
    [2, 'embedding'],
  ]);
  expect(data[0]?.embedding).toEqual(data[2]?.embedding);
  expect(data[0]?.embedding).not.toEqual(data[1]?.embedding);
  expect(data[0]?.embedding).toHaveLength(256);
  expect(Math.hypot(...(data[0]?.embedding ?? []))).toBeCloseTo(1, 5);
  expect(usage).toEqual({ prompt_tokens: 3, total_tokens: 3 });
  expect((await embed({ input: 'x', dimensions: 12 })).data[0]?.embedding).toHaveLength(12);
  expect((await embed({ input: 'x', model: 'text-embedding-3-large' })).data[0]?.embedding).toHaveLength(3072);
});

test.for<[Json, string]>([
  [{}, 'input'],
  [{ input: '' }, 'input'],
  [{ input: [] }, 'input'],
  [{ input: ['a', 7] }, 'input[1]'],
  [{ input: Array.from({ length: 2_049 }, () => 'x') }, 'input'],
  [{ input: 'x', dimensions: 0 }, 'dimensions'],
  [{ input: 'x', encoding_format: 'hex' }, 'encoding_format'],
])('wrong input %# is refused', async ([fields, param]) => {
  const response = await post('/v1/embeddings', { model: 'sim-embedding', ...fields });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ error: { param } });
});
