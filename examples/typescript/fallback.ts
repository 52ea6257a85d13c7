// A config in a header: when the first target answers 503, the second one is called.
import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL ?? 'http://127.0.0.1:8787'}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
});

const config = {
  strategy: { mode: 'fallback' },
  targets: [
    { provider: '@simulator', override_params: { model: 'sim-fault-503' } },
    { provider: '@simulator', override_params: { model: 'sim-small' } },
  ],
};
const { data, response } = await client.chat.completions
  .create(
    { model: 'any', messages: [{ role: 'user', content: 'Who answers?' }] },
    { headers: { 'x-gateway-config': JSON.stringify(config) } },
  )
  .withResponse();
console.log(`${response.headers.get('x-gateway-last-used-option-index')} answered: ${data.model}`);
