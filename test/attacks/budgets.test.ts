import { afterAll, beforeAll } from 'vitest';
import { startScriptedPlatform, storeVirtualKey, type ScriptedPlatform } from '#test/api/scripted-provider.ts';
import { createWorkspace } from '#test/api/second-workspace.ts';
import { eventually } from '#test/eventually.ts';
import { hang, streamOf, type UpstreamScript } from '#test/upstream.ts';
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

/** Makes 20 calls that end without an answer, one after the other, and says what was sent and what was counted. */
async function lose(name: string, call: (send: Awaited<ReturnType<typeof limited>>['send']) => Promise<unknown>) {
  const { upstream } = scripted;
  const { send, used } = await limited(tokens(2_000));
  const before = upstream.requests.length;
  for (let count = 0; count < 20; count += 1) await call(send);
  const sent = upstream.requests.length - before;
  if (sent === 0) throw new Error(`${name}: no call has reached the provider`);
  upstream.script(({ json }) => json(200, { ...answer, usage }));
  const { status } = await send('/chat/completions', { ...chat, max_tokens: 900 });
  // 500 tokens were reserved for each request that reached the provider: four of them fill the budget.
  const leaks = sent > 4 ? [`${name}: ${sent} requests of 500 tokens passed a budget of 2,000`] : [];
  if (status !== 412) leaks.push(`${name}: a further call is answered with ${status}`);
  const counted = await eventually(used, (count) => count >= 500 * Math.min(sent, 4)).catch(used);
  if (counted < 500 * Math.min(sent, 4)) leaks.push(`${name}: ${counted} tokens are counted for ${sent} requests`);
  return leaks;
}

attack('a caller ends calls before their answers, to pay for none of them', async () => {
  const { upstream } = scripted;
  const call = { ...chat, max_tokens: 460, messages: [{ role: 'user', content: 'x'.repeat(80) }] };
  const leaving = (body: object) => async (send: Awaited<ReturnType<typeof limited>>['send']) => {
    const caller = new AbortController();
    const seen = upstream.requests.length;
    upstream.script(async (reply) => {
      if ('stream' in body) {
        reply.head(200, { 'content-type': 'text/event-stream' });
        await reply.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: 'H' } }] })}\n\n`);
      }
    });
    const made = send('/chat/completions', body, { signal: caller.signal }).catch(() => {});
    await Promise.race([made, upstream.until(() => upstream.requests.length > seen)]);
    caller.abort();
    await made;
    await eventually(
      () => upstream.connections().open,
      (open) => open === 0,
    ).catch(() => {});
  };
  const timingOut = async (send: Awaited<ReturnType<typeof limited>>['send']) => {
    upstream.script(hang);
    const headers = { 'x-gateway-request-timeout': '20', 'x-gateway-retry-count': '2' };
    await send('/chat/completions', call, { headers });
  };
  const cutting = async (send: Awaited<ReturnType<typeof limited>>['send']) => {
    upstream.script((reply) => reply.cut());
    await send('/chat/completions', call);
  };
  return [
    ...(await lose('leaving before the answer', leaving(call))),
    ...(await lose('leaving a stream', leaving({ ...call, stream: true }))),
    ...(await lose('timing out with retries', timingOut)),
    ...(await lose('losing the connection', cutting)),
  ];
});

const named = { headers: { 'x-gateway-virtual-key': 'own' } };
const unnamedWork: [path: string, body: object][] = [
  ['/threads/thread_1/runs', { assistant_id: 'asst_1' }],
  ['/threads/runs', { assistant_id: 'asst_1', stream: true }],
  ['/threads/thread_1/runs/run_1/submit_tool_outputs', { tool_outputs: [] }],
  ['/responses', { input: 'Hi' }],
  ['/responses', { prompt: { id: 'pmpt_1' } }],
  ['/responses/compact', { input: 'Hi' }],
];

attack('a caller lets the provider choose the model, so that no price is known', async () => {
  const { upstream, platform } = scripted;
  const { send, key } = await limited({ type: 'cost', credit_limit: 1 });
  const before = upstream.requests.length;
  upstream.script(({ json }) => json(200, { id: 'run_1', object: 'thread.run', status: 'queued', usage: null }));
  const leaks: string[] = [];
  const require412 = (what: string, { status, text }: Sent): void => {
    if (status !== 412 || !text.includes('price_unknown')) leaks.push(`${what} is answered with ${status}: ${text}`);
  };
  for (const [path, body] of unnamedWork) require412(`${path} ${JSON.stringify(body)}`, await send(path, body, named));
  const upload = async (path: string, form: FormData): Promise<Sent> => {
    const headers = { authorization: `Bearer ${key}`, 'x-gateway-virtual-key': 'own' };
    const response = await fetch(`${platform.baseUrl}${path}`, { method: 'POST', headers, body: form });
    return { status: response.status, text: await response.text() };
  };
  const audio = new FormData();
  audio.append('file', new Blob(['x'.repeat(100)]), 'a.mp3');
  audio.append('model', 'whisper-1');
  require412('a transcription with its model behind the file', await upload('/audio/transcriptions', audio));
  const training = new FormData();
  training.append('purpose', 'fine-tune');
  training.append('file', new Blob([`${JSON.stringify({ messages })}\n`]), 'a.jsonl');
  const file = JSON.parse((await upload('/files', training)).text) as { id: string };
  const job = { model: '@own/gpt-4o-mini', training_file: file.id };
  require412('a fine-tuning job', await send('/fine_tuning/jobs', job));
  if (upstream.requests.length > before)
    leaks.push(`${upstream.requests.length - before} requests reached the provider`);
  // What no model works for is not in the way of any budget.
  const list = await send('/assistants', undefined, { ...named, method: 'GET' });
  if (list.status !== 200) throw new Error(`a list is refused: ${list.text}`);
  return leaks;
});

attack('a caller lets the provider choose the model, so that no tokens are counted', async () => {
  const { upstream } = scripted;
  const leaks: string[] = [];
  const byInput = { input_tokens: 900, output_tokens: 100, total_tokens: 1_000 };
  upstream.script(({ json }) =>
    json(200, { id: 'resp_1', object: 'response', model: 'gpt-4o', output: [], usage: byInput }),
  );
  const responses = await limited(tokens(2_000));
  const statuses: number[] = [];
  const stored = { prompt: { id: 'pmpt_1' }, max_output_tokens: 100 };
  for (let call = 0; call < 20; call += 1) statuses.push((await responses.send('/responses', stored, named)).status);
  if (statuses.filter((status) => status === 200).length !== 2)
    leaks.push(`responses are answered with ${statuses.join()}`);
  // A run says what it used only when it is read later, and its thread may be long.
  const run = { id: 'run_1', object: 'thread.run', model: 'gpt-4o' };
  const ofThread = { prompt_tokens: 1_700, completion_tokens: 100, total_tokens: 1_800 };
  upstream.script(({ json }, { method }) =>
    json(200, { ...run, ...(method === 'POST' ? { usage: null } : { status: 'completed', usage: ofThread }) }),
  );
  const runs = await limited(tokens(2_000));
  const body = { assistant_id: 'a', max_completion_tokens: 100 };
  const begun = await runs.send('/threads/t_1/runs', body, named);
  if (begun.status !== 200) throw new Error(`the run is refused: ${begun.text}`);
  const reserved = await eventually(runs.used, (count) => count > 0);
  for (let read = 0; read < 3; read += 1) {
    await runs.send('/threads/t_1/runs/run_1', undefined, { ...named, method: 'GET' });
  }
  const counted = await eventually(runs.used, (count) => count > reserved).catch(runs.used);
  if (counted !== 1_800) leaks.push(`${counted} tokens are counted for a run of 1,800, after ${reserved}`);
  const further = await runs.send('/threads/t_1/runs', body, named);
  if (further.status !== 412) leaks.push(`a further run is answered with ${further.status}`);
  return leaks;
});

attack(
  'a caller sends calls to a server of its own that reports absurd usage, to use up the budget of its workspace',
  async () => {
    const { upstream } = scripted;
    const leaks: string[] = [];
    const own = {
      'x-gateway-provider': 'openai',
      'x-gateway-custom-host': upstream.url.href,
      authorization: 'Bearer sk-of-the-caller',
    };
    const plain = { ...chat, model: 'gpt-4o' };
    const absurd = { ...usage, prompt_tokens: 9e15 };
    const details = { cached_tokens: 9e15 };
    const chunk = { id: 'c', object: 'chat.completion.chunk', created: 1, model: 'gpt-4o', choices: [] };
    const done = { ...chunk, choices: [{ index: 0, delta: { content: 'Hi' }, finish_reason: 'stop' }] };
    const stories: [string, path: string, body: object, reply: UpstreamScript][] = [
      ['an answer', '/chat/completions', plain, ({ json }) => json(200, { ...answer, usage: absurd })],
      [
        'details',
        '/chat/completions',
        plain,
        ({ json }) => json(200, { ...answer, usage: { ...usage, prompt_tokens_details: details } }),
      ],
      [
        'a stream',
        '/chat/completions',
        { ...plain, stream: true },
        streamOf([done, { ...chunk, usage: absurd }].map((event) => JSON.stringify(event))),
      ],
      [
        'a response',
        '/responses',
        { model: 'gpt-4o', input: 'Hi' },
        ({ json }) =>
          json(200, { id: 'resp_1', model: 'gpt-4o', output: [], usage: { input_tokens: 9e15, output_tokens: 9e15 } }),
      ],
    ];
    for (const budget of [tokens(1_000_000), { type: 'cost', credit_limit: 1_000 }]) {
      for (const [what, path, body, reply] of stories) {
        const { send, used, key } = await limited(budget);
        upstream.script(reply);
        const made = await send(path, body, { headers: { ...own, 'x-gateway-api-key': key } });
        if (made.status !== 200) throw new Error(`the call is refused: ${made.text}`);
        const counted = await eventually(used, (count) => count > 0);
        if (counted > 5_000) leaks.push(`${counted} are counted for ${what} under ${JSON.stringify(budget)}`);
        upstream.script(({ json }) => json(200, { ...answer, usage }));
        const { status } = await send('/chat/completions', chat);
        if (status !== 200) leaks.push(`after ${what} a colleague is answered with ${status}`);
        if (what === 'details') continue;
        const logged = async () => (await send('/logs', undefined, { method: 'GET' })).text;
        const isMarked = (text: string) => text.includes('"usage_implausible":true');
        const records = await eventually(logged, isMarked, { timeoutMs: 5_000 }).catch(logged);
        if (!isMarked(records)) leaks.push(`the log does not mark ${what} as implausible: ${records}`);
      }
    }
    return leaks;
  },
);
