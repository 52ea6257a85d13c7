// A stored prompt: its text is in Sluice, in versions; a program passes variables.
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
});

// Once, or in the console. An answer of 409 says that it is there.
await client
  .post('/prompts', {
    body: {
      name: 'Example greeting',
      slug: 'example-greeting',
      virtual_key: 'simulator',
      model: 'sim-small',
      string: JSON.stringify([
        { role: 'system', content: 'You greet {{name}} kindly.' },
        { role: 'user', content: 'Hello' },
      ]),
    },
  })
  .catch((error: unknown) => {
    if (!(error instanceof OpenAI.APIError && error.status === 409)) throw error;
  });
const answer = await client.post<OpenAI.ChatCompletion>('/prompts/example-greeting/completions', {
  body: { variables: { name: 'Ada' } },
});
console.log(answer.choices[0]?.message.content);
