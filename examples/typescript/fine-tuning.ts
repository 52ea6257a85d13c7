// A fine-tuning job at the provider of a virtual key.
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
});

const example = {
  messages: [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello there' },
  ],
};
const text = `${JSON.stringify(example)}\n`.repeat(12);
const file = await client.files.create({ purpose: 'fine-tune', file: new File([text], 'examples.jsonl') });
const job = await client.fineTuning.jobs.create(
  { model: 'sim-small', training_file: file.id },
  { headers: { 'x-gateway-virtual-key': 'simulator' } },
);
console.log(`${job.id} is ${job.status}`);
