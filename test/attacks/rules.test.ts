import { afterAll, beforeAll } from 'vitest';
import { guardrailForms } from '#test/guardrail-forms.ts';
import { postJson, startScriptedPlatform } from '../api/scripted-provider.ts';
import { attack } from './attack.ts';

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
});
afterAll(() => scripted.stop());

attack('A member hides a forbidden word from an input guardrail, in each known form of a request', async () => {
  const { platform, upstream } = scripted;
  upstream.script((reply) => reply.json(200, { choices: [] }));
  const check = { contains: { operator: 'none', words: ['Forbidden'] }, deny: true };
  const config = { virtual_key: 'scripted', input_guardrails: [check] };
  const headers = { 'x-gateway-config': JSON.stringify(config) };
  const send = async (route: string, body: object): Promise<number> => {
    const response = await postJson(platform, route, { model: 'm', ...body }, headers);
    await response.arrayBuffer();
    return response.status;
  };
  const leaks: string[] = [];
  for (const { name, route, body } of guardrailForms('Forbidden')) {
    const status = await send(route, body);
    // Some forms are refused by the contract of their route before any guardrail.
    if (status !== 446 && status !== 400) leaks.push(`${name}: ${status}`);
  }
  if (upstream.requests.length > 0) leaks.push(`the provider got ${upstream.requests.length} requests`);
  const allowed = await send('/chat/completions', { messages: [{ role: 'user', content: 'fine' }] });
  if (allowed !== 200) leaks.push(`an ordinary request is refused as well: ${allowed}`);
  return leaks;
});
