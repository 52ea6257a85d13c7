// An answer as it is written, piece by piece.
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
});

const stream = await client.chat.completions.create({
  model: '@simulator/sim-small',
  messages: [{ role: 'user', content: 'Count to five.' }],
  stream: true,
});
for await (const part of stream) process.stdout.write(part.choices[0]?.delta.content ?? '');
console.log();
