// A chat completion: OpenAI's own client, whatever provider the model names.
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
});

const answer = await client.chat.completions.create({
  model: '@simulator/sim-small',
  messages: [{ role: 'user', content: 'Say hello in one sentence.' }],
});
console.log(answer.choices[0]?.message.content);
