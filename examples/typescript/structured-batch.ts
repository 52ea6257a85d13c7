// A batch whose answers must match a JSON Schema. An answer that does not match is retried.
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
});

const schema = {
  type: 'object',
  properties: { capital: { type: 'string' }, inhabitants: { type: 'integer' } },
  required: ['capital', 'inhabitants'],
  additionalProperties: false,
};
const lines = ['France', 'Peru', 'Kenya'].map((country) => ({
  custom_id: country,
  method: 'POST',
  url: '/v1/chat/completions',
  body: {
    model: '@simulator/sim-small',
    messages: [{ role: 'user', content: `What is the capital of ${country}?` }],
    response_format: { type: 'json_schema', json_schema: { name: 'capital', schema } },
  },
}));
const text = lines.map((line) => `${JSON.stringify(line)}\n`).join('');
const file = await client.files.create({ purpose: 'batch', file: new File([text], 'lines.jsonl') });
const options = { gateway_options: { validate_outputs: { retries: 2 } } };
let batch = await client.batches.create({
  input_file_id: file.id,
  endpoint: '/v1/chat/completions',
  completion_window: '24h',
  ...options,
});
while (!['completed', 'failed', 'expired', 'cancelled'].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  batch = await client.batches.retrieve(batch.id);
}
console.log(JSON.stringify(batch, null, 2)); // `validated_outputs` says how many lines matched.
