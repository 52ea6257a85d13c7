import type OpenAI from 'openai';
import { expect, test } from 'vitest';
import { startTestSimulator, type Json } from '../../start-test-simulator.ts';

const { openai, post } = await startTestSimulator();
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

test('base64 holds the same numbers as little-endian float32', async () => {
  const [floats, base64] = await Promise.all([embed({ input: 'x' }), embed({ input: 'x', encoding_format: 'base64' })]);
  const bytes = Buffer.from(base64.data[0]?.embedding as unknown as string, 'base64');
  const decoded = Array.from({ length: bytes.length / 4 }, (_, index) => bytes.readFloatLE(index * 4));
  expect(decoded).toEqual(floats.data[0]?.embedding.map(Math.fround));
  const { data } = await openai.embeddings.create({ model: 'sim-embedding', input: 'x' });
  expect(data[0]?.embedding).toEqual(decoded);
});

test('token inputs are counted as tokens', async () => {
  expect((await embed({ input: [1, 2, 3] })).data).toHaveLength(1);
  const { data, usage } = await embed({ input: [[1, 2, 3], [4]] });
  expect(data).toHaveLength(2);
  expect(usage.prompt_tokens).toBe(4);
});

test('sim-reflect shows the body beside the vectors', async () => {
  const body = '{"model":"sim-reflect", "input":"x","big":123456789012345678901}';
  const response = await post('/v1/embeddings', body);
  expect(await response.json()).toMatchObject({ reflected_body: body, reflected: { path: '/v1/embeddings' } });
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
