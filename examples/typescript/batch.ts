// A batch: upload the lines, submit them, wait, read the answers.
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
});

const lines = ['one', 'two', 'three'].map((word) => ({
  custom_id: word,
  method: 'POST',
  url: '/v1/chat/completions',
  body: { model: '@simulator/sim-small', messages: [{ role: 'user', content: `Say ${word}.` }] },
}));
const text = lines.map((line) => `${JSON.stringify(line)}\n`).join('');
const file = await client.files.create({ purpose: 'batch', file: new File([text], 'lines.jsonl') });
let batch = await client.batches.create({
  input_file_id: file.id,
  endpoint: '/v1/chat/completions',
  completion_window: '24h',
});
while (!['completed', 'failed', 'expired', 'cancelled'].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  batch = await client.batches.retrieve(batch.id);
}
if (typeof batch.output_file_id !== 'string') throw new Error(`the batch is ${batch.status} and has no output`);
console.log(await (await client.files.content(batch.output_file_id)).text());
