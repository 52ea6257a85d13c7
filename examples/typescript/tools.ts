// A tool that the model may call, and the answer to what it returned. (The simulator calls a tool that is named.)
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
});

const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Use get_weather for Paris.' }];
const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      description: 'The weather of a city',
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    },
  },
];
const asked = await client.chat.completions.create({ model: '@simulator/sim-small', messages, tools });
const message = asked.choices[0]?.message;
if (message === undefined) throw new Error('no answer');
messages.push(message);
for (const call of message.tool_calls ?? []) {
  if (call.type !== 'function') continue;
  console.log(`the model calls ${call.function.name}(${call.function.arguments})`);
  messages.push({ role: 'tool', tool_call_id: call.id, content: 'Sunny, 21 °C' });
}
const answer = await client.chat.completions.create({ model: '@simulator/sim-small', messages, tools });
console.log(answer.choices[0]?.message.content);
