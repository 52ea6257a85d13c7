import { afterAll, beforeAll } from 'vitest';
import { startScriptedPlatform, storeVirtualKey, type ScriptedPlatform } from '#test/api/scripted-provider.ts';
import { createWorkspace } from '#test/api/second-workspace.ts';
import { hang } from '#test/upstream.ts';
import { attack } from './attack.ts';

// Callers who spend more than their budget, or who spend that of others.

let scripted: ScriptedPlatform;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
});
afterAll(() => scripted?.stop());

const messages = [{ role: 'user', content: 'Hi' }];
const chat = { model: '@own/gpt-4o', messages, max_tokens: 100 };
const usage = { prompt_tokens: 500, completion_tokens: 500, total_tokens: 1_000 };
const answer = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'gpt-4o',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hi' }, finish_reason: 'stop' }],
};

type Sent = { status: number; text: string };
type Options = { headers?: Record<string, string>; method?: string; signal?: AbortSignal };

/** A workspace of its own with one budget, and a virtual key `own` that calls the scripted provider as OpenAI. */
async function limited(budget: object, { provider = 'openai' }: { provider?: string } = {}) {
  const { platform, upstream } = scripted;
  const key = await createWorkspace(platform);
  await storeVirtualKey({ ...platform, adminKey: key }, 'own', upstream.url.href, provider);
  const send = async (
    path: string,
    body?: unknown,
    { headers, method = 'POST', signal }: Options = {},
  ): Promise<Sent> => {
    const response = await fetch(`${platform.baseUrl}${path}`, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...headers },
      ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      ...(signal ? { signal } : {}),
    });
    return { status: response.status, text: await response.text() };
  };
  const made = await send('/policies/usage-limits', { conditions: [], group_by: [], ...budget });
  if (made.status !== 200) throw new Error(made.text);
  const { id } = JSON.parse(made.text) as { id: string };
  const used = async (): Promise<number> => {
    const { text } = await send(`/policies/usage-limits/${id}/entities`, undefined, { method: 'GET' });
    return (JSON.parse(text) as { data: { current_usage: number }[] }).data[0]?.current_usage ?? 0;
  };
  return { send, used, key };
}

const tokens = (credit_limit: number) => ({ type: 'tokens', credit_limit });

attack('a caller sends bounds below 1 or beyond all models, to be credited with what they lack', async () => {
  const { upstream } = scripted;
  const { send } = await limited(tokens(2_000));
  const leaks: string[] = [];
  upstream.script(hang);
  const bodies: [path: string, body: string][] = [];
  for (const number of ['-1e9', '-1', '0', '0.5', '1e308', '-1e308', '1e400', '"1"']) {
    const responses = `"model":"@own/gpt-4o","input":"Hi"`;
    for (const name of ['max_tokens', 'max_completion_tokens', 'n'])
      bodies.push([
        '/chat/completions',
        JSON.stringify({ ...chat, max_tokens: undefined }).replace('}]', `}],"${name}":${number}`),
      ]);
    for (const name of ['max_output_tokens', 'max_tokens', 'n', 'best_of'])
      bodies.push(['/responses', `{${responses},"${name}":${number}}`]);
    bodies.push(['/responses', `{${responses},"max_output_tokens":1000000,"n":${number}}`]);
    bodies.push(['/images/generations', `{"model":"@own/gpt-image-1","prompt":"x","n":${number}}`]);
    bodies.push(['/threads/thread_1/runs', `{"assistant_id":"asst_1","max_completion_tokens":${number}}`]);
  }
  bodies.push(['/completions', '{"model":"@own/gpt-4o","prompt":"x","max_tokens":-1e9}']);
  bodies.push(['/completions', '{"model":"@own/gpt-4o","prompt":"x","best_of":-5}']);
  const headers = { 'x-gateway-virtual-key': 'own' };
  for (const [path, body] of bodies) {
    const { status } = await send(path, body, { headers, signal: AbortSignal.timeout(5_000) }).catch(() => ({
      status: 0,
    }));
    if (status !== 400) leaks.push(`${path} with ${body} is answered with ${status}`);
  }
  const config = { provider: 'openai', override_params: { max_tokens: -1e9 } };
  const stored = await send('/configs', { name: 'minting', config });
  if (stored.status !== 400) leaks.push(`a config with a negative bound is answered with ${stored.status}`);
  // The budget is what it was: two calls of a thousand tokens, and no third one.
  upstream.script(({ json }) => json(200, { ...answer, usage }));
  const statuses = [];
  for (let call = 0; call < 4; call += 1) statuses.push((await send('/chat/completions', chat)).status);
  if (statuses.join() !== '200,200,412,412') leaks.push(`calls under the budget are answered with ${statuses.join()}`);
  return leaks;
});

attack('a caller sends a small and a large bound, to reserve one and use the other', async () => {
  const { upstream } = scripted;
  const { send } = await limited(tokens(2_000));
  const before = upstream.requests.length;
  upstream.script(({ json }) => json(200, { ...answer, usage }));
  const both = { ...chat, max_completion_tokens: 1, max_tokens: 60_000 };
  const sent = await Promise.all(Array.from({ length: 20 }, () => send('/chat/completions', both)));
  const leaks = sent.filter(({ status }) => status !== 412).map(({ status }) => `a call is answered with ${status}`);
  const fits = await send('/chat/completions', { ...chat, max_completion_tokens: 20, max_tokens: 100 });
  if (fits.status !== 200) throw new Error(`both bounds are refused: ${fits.text}`);
  const received = upstream.requests.slice(before).map(({ body }) => JSON.parse(body.toString()) as object);
  if (received.some((body) => 'max_tokens' in body)) leaks.push('both bounds are forwarded');
  return leaks;
});
