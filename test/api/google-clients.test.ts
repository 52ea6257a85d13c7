import {
  ApiError,
  FunctionCallingConfigMode,
  GoogleGenAI,
  type Content,
  type FunctionDeclaration,
  type Part,
} from '@google/genai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { storeWireKeys, wireKeys } from './wire-keys.ts';

// Google's SDK, unchanged, against each wire format that the core translates to.

let platform: TestPlatform;
let client: GoogleGenAI;
let origin: string;

beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  await storeWireKeys(platform);
  origin = new URL(platform.baseUrl).origin;
  client = new GoogleGenAI({ apiKey: platform.adminKey, httpOptions: { baseUrl: origin } });
});
afterAll(() => platform.stop());

const send = (path: string, body: unknown, headers: Record<string, string> = {}): Promise<Response> =>
  fetch(origin + path, {
    method: 'POST',
    headers: { 'x-goog-api-key': platform.adminKey, 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  });

const rowsOf = async (traceId: string): Promise<Record<string, unknown>[]> => {
  const headers = { authorization: `Bearer ${platform.adminKey}` };
  const list = async () => {
    const response = await fetch(`${platform.baseUrl}/logs?trace_id=${traceId}`, { headers });
    return ((await response.json()) as { data: Record<string, unknown>[] }).data;
  };
  return eventually(list, (rows) => rows.length > 0);
};

const ask = (text: string): Content => ({ role: 'user', parts: [{ text }] });
const cityTool = (name: string): FunctionDeclaration => ({
  name,
  description: `Tells the ${name}`,
  parametersJsonSchema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
});
const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

/** The parts of a stream in their order, as a client keeps them for the next turn. */
async function collect(request: Parameters<GoogleGenAI['models']['generateContentStream']>[0]) {
  const parts: Part[] = [];
  const last: { finishReason?: string | undefined; tokens?: number | undefined } = {};
  for await (const chunk of await client.models.generateContentStream(request)) {
    const [candidate] = chunk.candidates ?? [];
    parts.push(...(candidate?.content?.parts ?? []));
    last.finishReason = candidate?.finishReason ?? last.finishReason;
    last.tokens = chunk.usageMetadata?.totalTokenCount ?? last.tokens;
  }
  return { parts, ...last };
}
const textOf = (parts: readonly Part[]): string =>
  parts.map(({ text, thought }) => (thought === true ? '' : (text ?? ''))).join('');
const resultsOf = (parts: readonly Part[], response: Record<string, unknown>): Content => ({
  role: 'user',
  parts: parts.flatMap(({ functionCall: call }) =>
    call === undefined
      ? []
      : [{ functionResponse: { ...(call.id ? { id: call.id } : {}), name: call.name ?? '', response } }],
  ),
});

describe.each(wireKeys)('$provider', ({ provider, model, prefix, embeddings }) => {
  const name = (...options: string[]): string => [`@wire-${provider}/${model}`, ...options].join('__');

  test('answers with content whose stream is the same', async () => {
    const traceId = `google-${provider}`;
    const request = {
      model: name(),
      contents: 'Say hello.',
      config: {
        systemInstruction: 'Answer briefly.',
        maxOutputTokens: 500,
        httpOptions: { headers: { 'x-gateway-trace-id': traceId } },
      },
    };
    const whole = await client.models.generateContent(request);
    expect(whole.text).toMatch(/./);
    expect(whole.candidates?.[0]).toMatchObject({ finishReason: 'STOP', content: { role: 'model' } });
    const counts = whole.usageMetadata;
    expect(counts?.totalTokenCount).toBe((counts?.promptTokenCount ?? 0) + (counts?.candidatesTokenCount ?? 0));
    expect(await rowsOf(traceId)).toMatchObject([
      { operation: 'generate_content', provider, status: 200, usage: { input_tokens: counts?.promptTokenCount } },
    ]);
    const streamed = await collect({
      ...request,
      config: { systemInstruction: 'Answer briefly.', maxOutputTokens: 500 },
    });
    expect(textOf(streamed.parts)).toBe(whole.text);
    expect(streamed).toMatchObject({ finishReason: 'STOP', tokens: counts?.totalTokenCount });
  });

  test('calls tools in parallel over three turns', async () => {
    const config = { tools: [{ functionDeclarations: [cityTool('weather'), cityTool('time')] }], maxOutputTokens: 500 };
    const contents: Content[] = [ask('Ask weather and time for Paris.')];
    const first = await collect({ model: name(), contents, config });
    const calls = first.parts.flatMap(({ functionCall }) => functionCall ?? []);
    expect(calls.map((call) => call.name)).toEqual(['weather', 'time']);
    for (const { args } of calls) expect(args).toHaveProperty('city');
    contents.push({ role: 'model', parts: first.parts }, resultsOf(first.parts, { output: 'fine' }));
    const second = await client.models.generateContent({ model: name(), contents, config });
    expect(second.text).toMatch(/./);
    contents.push({ role: 'model', parts: second.candidates?.[0]?.content?.parts ?? [] });
    contents.push(ask('Ask weather and time for Rome.'));
    const functionCallingConfig = { mode: FunctionCallingConfigMode.ANY };
    const third = await client.models.generateContent({
      model: name(),
      contents,
      config: { ...config, toolConfig: { functionCallingConfig } },
    });
    expect(third.functionCalls?.length).toBeGreaterThan(0);
    const parts = third.candidates?.[0]?.content?.parts ?? [];
    contents.push({ role: 'model', parts }, resultsOf(parts, { temperature: 20, sky: 'clear' }));
    expect((await client.models.generateContent({ model: name(), contents, config })).text).toMatch(/./);
  });

  test('sees images', async () => {
    const contents = [
      { role: 'user', parts: [{ text: 'What is it?' }, { inlineData: { mimeType: 'image/png', data: pixel } }] },
    ];
    expect((await client.models.generateContent({ model: name(), contents })).text).toMatch(/./);
  });

  test('gives structured output', async () => {
    const responseSchema = {
      type: 'OBJECT',
      properties: { city: { type: 'STRING' }, people: { type: 'INTEGER' } },
      required: ['city', 'people'],
    };
    const answer = await client.models.generateContent({
      model: name(),
      contents: 'Name a city.',
      config: { responseMimeType: 'application/json', responseSchema },
    });
    expect(JSON.parse(answer.text ?? '')).toEqual({ city: expect.any(String), people: expect.any(Number) });
  });

  test('gets its reasoning back within a loop of tool calls', async () => {
    const request = {
      model: name('think'),
      config: {
        maxOutputTokens: 4_000,
        thinkingConfig: { includeThoughts: true, thinkingBudget: 1_024 },
        tools: [{ functionDeclarations: [cityTool('weather')] }],
      },
    };
    const contents = [ask('Ask weather for Paris.')];
    const first = await collect({ ...request, contents });
    expect(first.parts.some(({ functionCall }) => functionCall !== undefined)).toBe(true);
    contents.push({ role: 'model', parts: first.parts }, resultsOf(first.parts, { output: 'sunny' }));
    const second = await client.models.generateContent({ ...request, contents });
    expect(second.candidates?.[0]?.finishReason).toBe('STOP');
  });

  test.each([
    [400, 'INVALID_ARGUMENT'],
    [401, 'UNAUTHENTICATED'],
    [404, 'NOT_FOUND'],
    [429, 'RESOURCE_EXHAUSTED'],
    [500, 'INTERNAL'],
    [503, 'UNAVAILABLE'],
  ])('reports status %i in the form of Google', async (status, kind) => {
    const failing = `@wire-${provider}/${prefix}sim-fault-${status}`;
    const response = await send(`/v1beta/models/${failing}:generateContent`, { contents: [ask('Hi')] });
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({
      error: { code: status, status: kind, message: expect.stringMatching(/./) },
    });
  });

  test('counts tokens', async () => {
    const count = async (contents: string) =>
      (await client.models.countTokens({ model: name(), contents })).totalTokens;
    const [short = 0, long = 0] = await Promise.all([count('Hi'), count('Why is the sky blue? '.repeat(50))]);
    expect(short).toBeGreaterThan(0);
    expect(long).toBeGreaterThan(short + 150);
  });

  test.runIf(embeddings !== null)('makes embeddings', async () => {
    // Models of Amazon embed one text per call.
    const texts = ['The sky', 'The sea'].slice(0, provider === 'bedrock' ? 1 : 2);
    const answer = await client.models.embedContent({
      model: `@wire-${provider}/${embeddings}`,
      contents: texts,
      config: { taskType: 'RETRIEVAL_DOCUMENT' },
    });
    expect(answer.embeddings).toHaveLength(texts.length);
    for (const { values } of answer.embeddings ?? []) expect(values?.length).toBeGreaterThan(1);
  });

  test('stops when the client leaves in the middle of a stream', async () => {
    const traceId = `google-leaves-${provider}`;
    const controller = new AbortController();
    const stream = await client.models.generateContentStream({
      model: name('2000tok', '50tps'),
      contents: 'Say hello.',
      config: {
        maxOutputTokens: 4_000,
        abortSignal: controller.signal,
        httpOptions: { headers: { 'x-gateway-trace-id': traceId } },
      },
    });
    await stream.next();
    controller.abort();
    await expect(stream.next()).rejects.toThrow('abort');
    expect(await rowsOf(traceId)).toMatchObject([{ operation: 'generate_content', status: 499 }]);
  });
});

describe('the routes', () => {
  const body = { contents: [ask('Say hello.')] };
  const model = '@simulator/sim-small';

  test.each([
    `/v1beta/models/${model}:generateContent`,
    `/v1beta/models/${encodeURIComponent(model)}:generateContent`,
    `/v1/models/${model}:generateContent`,
    `/v1beta1/publishers/google/models/${model}:generateContent`,
    `/v1beta1/projects/p-1/locations/europe-west4/publishers/google/models/${model}:generateContent`,
    `/v1/projects/p-1/locations/global/publishers/google/models/${encodeURIComponent(model)}:generateContent`,
  ])('answer at %s', async (path) => {
    const response = await send(path, body);
    expect([response.status, await response.json()]).toMatchObject([200, { candidates: [{ finishReason: 'STOP' }] }]);
  });

  test('stream a list without alt=sse, and events with it', async () => {
    const list = await send(`/v1beta/models/${model}:streamGenerateContent`, body);
    expect(list.headers.get('content-type')).toMatch(/^application\/json/);
    const payloads = (await list.json()) as { candidates: { finishReason?: string }[] }[];
    expect(payloads.at(-1)?.candidates[0]?.finishReason).toBe('STOP');
    const events = await send(`/v1beta/models/${model}:streamGenerateContent?alt=sse`, body);
    expect(events.headers.get('content-type')).toMatch(/^text\/event-stream/);
    const text = await events.text();
    expect(text).not.toContain('[DONE]');
    expect(text.split('\n\n').filter((event) => event.startsWith('data: '))).toHaveLength(payloads.length);
  });

  test('list the models, page by page, and show one', async () => {
    const headers = { 'x-goog-api-key': platform.adminKey };
    const read = async (path: string) =>
      (await (await fetch(origin + path, { headers })).json()) as Record<string, unknown>;
    const names: unknown[] = [];
    for await (const each of await client.models.list({ config: { pageSize: 2 } })) names.push(each.name);
    const openAi = { headers: { authorization: `Bearer ${platform.adminKey}` } };
    const { data } = (await (await fetch(`${origin}/v1/models`, openAi)).json()) as { data: { id: string }[] };
    expect(names).toEqual(data.map(({ id }) => `models/${id}`));
    const listed = '@simulator/sim-text';
    expect(await read(`/v1beta/models/${listed}`)).toMatchObject({ name: `models/${listed}`, displayName: listed });
    expect(await read('/v1beta/models/@simulator/missing')).toMatchObject({
      error: { code: 404, status: 'NOT_FOUND' },
    });
  });

  test('refuse a key in the URL and say why', async () => {
    const response = await fetch(`${origin}/v1beta/models/${model}:generateContent?key=AIza-secret`, {
      method: 'POST',
    });
    const text = await response.text();
    expect(JSON.parse(text)).toMatchObject({
      error: { code: 400, status: 'INVALID_ARGUMENT', message: expect.stringContaining("'x-goog-api-key'") },
    });
    expect(text).not.toContain('AIza-secret');
  });

  test('answer unknown keys, methods and paths in the form of Google', async () => {
    const wrong = new GoogleGenAI({ apiKey: 'sk-wrong', httpOptions: { baseUrl: origin } });
    const refused = await wrong.models.generateContent({ model, contents: 'Hi' }).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(ApiError);
    expect(refused).toMatchObject({ status: 401 });
    expect(await (await send('/v1beta/nothing', {})).json()).toMatchObject({
      error: { code: 404, status: 'NOT_FOUND' },
    });
    expect(await (await send(`/v1beta/models/${model}:generateContent`, {})).json()).toMatchObject({
      error: { code: 400, status: 'INVALID_ARGUMENT', message: expect.stringContaining('contents') },
    });
  });

  test('end a stream that breaks off with an error', async () => {
    const path = '/v1beta/models/@simulator/sim-fault-cut:streamGenerateContent';
    const events = await (await send(`${path}?alt=sse`, body)).text();
    const last = events.trim().split('\n\n').at(-1) ?? '';
    expect(JSON.parse(last.replace('data: ', ''))).toMatchObject({ error: { status: expect.any(String) } });
    const list = (await (await send(path, body)).json()) as unknown[];
    expect(list.at(-1)).toMatchObject({ error: { message: expect.any(String) } });
  });

  test('let a config set and drop parameters by the names of chat completions', async () => {
    const config = JSON.stringify({ override_params: { max_tokens: 3 } });
    for (const provider of ['gemini', 'openai']) {
      const response = await send(
        `/v1beta/models/@wire-${provider}/sim-small:generateContent`,
        { ...body, generationConfig: { maxOutputTokens: 400, temperature: 0.5 } },
        { 'x-gateway-config': config },
      );
      const answer = (await response.json()) as { usageMetadata: { candidatesTokenCount: number } };
      expect(answer.usageMetadata.candidatesTokenCount).toBeLessThanOrEqual(3);
    }
  });

  test('check the texts of requests, answers and streams with guardrails', async () => {
    const words = (list: string[]) => [{ id: 'default.contains', parameters: { words: list, operator: 'none' } }];
    const guarded = (kind: string, list: string[]) => ({
      'x-gateway-config': JSON.stringify({ [kind]: [{ id: 'g', deny: true, checks: words(list) }] }),
    });
    const path = `/v1beta/models/@wire-openai/sim-small:generateContent`;
    const input = await send(
      path,
      { contents: [ask('the forbidden word')] },
      guarded('input_guardrails', ['forbidden']),
    );
    expect(input.status).toBe(446);
    const said = (await (await send(path, body)).json()) as { candidates: { content: { parts: Part[] } }[] };
    const [word = ''] = /\w{4,}/.exec(textOf(said.candidates[0]?.content.parts ?? [])) ?? [];
    expect(word).not.toBe('');
    expect((await send(path, body, guarded('output_guardrails', [word]))).status).toBe(446);
    const streamed = await send(
      path.replace(':generate', ':streamGenerate') + '?alt=sse',
      body,
      guarded('output_guardrails', [word]),
    );
    expect(streamed.status).toBe(446);
  });
});
