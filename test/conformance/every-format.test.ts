import { expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { describeFaults } from '#apps/simulator/faults/faults.ts';
import { startTestSimulator, type Json } from '#test/test-simulator.ts';

const { post, simulator } = await startTestSimulator({ dripIntervalMs: 1 });

type Format = {
  name: string;
  path: (model: string, stream: boolean) => string;
  body: (model: string, stream: boolean) => Json;
  headers: Record<string, string>;
};
const user = { role: 'user', content: 'Hello' };
const parts = { contents: [{ role: 'user', parts: [{ text: 'Hello' }] }] };
const verb = (stream: boolean) => (stream ? 'streamGenerateContent' : 'generateContent');
const formats: Format[] = [
  {
    name: 'openai',
    path: () => '/v1/chat/completions',
    body: (model, stream) => ({ model, stream, messages: [user], max_tokens: 9 }),
    headers: {},
  },
  {
    name: 'anthropic',
    path: () => '/v1/messages',
    body: (model, stream) => ({ model, stream, messages: [user], max_tokens: 9 }),
    headers: { 'x-api-key': 'k', 'anthropic-version': '2023-06-01' },
  },
  {
    name: 'gemini',
    path: (model, stream) => `/v1beta/models/${model}:${verb(stream)}?alt=sse`,
    body: () => parts,
    headers: { 'x-goog-api-key': 'k' },
  },
  {
    name: 'gemini list',
    path: (model, stream) => `/v1beta/models/${model}:${verb(stream)}`,
    body: () => parts,
    headers: { 'x-goog-api-key': 'k' },
  },
  {
    name: 'vertex',
    path: (model, stream) => `/v1/projects/p/locations/r/publishers/google/models/${model}:${verb(stream)}?alt=sse`,
    body: () => parts,
    headers: {},
  },
  {
    name: 'bedrock',
    path: (model, stream) => `/model/${model}/converse${stream ? '-stream' : ''}`,
    body: () => ({ messages: [{ role: 'user', content: [{ text: 'Hello' }] }] }),
    headers: {},
  },
  {
    name: 'cohere',
    path: () => '/v2/chat',
    body: (model, stream) => ({ model, stream, messages: [user] }),
    headers: {},
  },
];
const endless = new Set(['hang', 'headers-then-hang', 'stall', 'hold-open']);
const broken = new Set(['cut', 'reset', 'reset-early']);
const names = describeFaults().faults.map(({ name }) =>
  name.replace('sim-fault-', '').replaceAll('NNN', '503').replace(/-N$/, '-7'),
);

test.for(formats)('$name has every fault, streamed or not', async (format) => {
  const calls = names
    .filter((name) => !endless.has(name))
    .flatMap((name) => {
      // Sending one byte at a time is slow, so this is only tested without streaming.
      const model = `sim-fault-${name}`.replace('slow-drip', 'slow-drip-1ms').replace('big-event', 'big-event-1');
      return (name === 'slow-drip' ? [false] : [true, false]).map(async (stream) => {
        // A bug resets the connection, which only three faults are allowed to do.
        const outcome = await post(format.path(model, stream), format.body(model, stream), format.headers)
          .then((response) => response.arrayBuffer())
          .then(
            () => 'answered',
            () => 'broken',
          );
        return [name, stream, outcome];
      });
    });
  for (const [name, stream, outcome] of await Promise.all(calls)) {
    expect([name, stream, outcome]).toEqual([name, stream, broken.has(String(name)) ? 'broken' : 'answered']);
  }
  await eventually(
    () => simulator.stats().open_requests,
    (open) => open === 0,
  );
});

test.for(formats)('$name answers errors as JSON with a message, and its own health after all that', async (format) => {
  const messageOf = (body: Json): unknown => (body['error'] as Json | undefined)?.['message'] ?? body['message'];
  for (const status of [400, 401, 403, 404, 408, 409, 422, 424, 429, 500, 502, 503, 504, 529]) {
    const model = `sim-fault-${status}`;
    const response = await post(format.path(model, true), format.body(model, true), format.headers);
    expect([response.status, response.headers.get('content-type')]).toEqual([status, 'application/json']);
    expect(messageOf((await response.json()) as Json)).toEqual(expect.any(String));
  }
  const malformed = await post(format.path('m', false), '{', format.headers);
  expect([malformed.status, messageOf((await malformed.json()) as Json)]).toEqual([400, expect.any(String)]);
  const reflected = await post(format.path('sim-reflect', false), format.body('sim-reflect', false), format.headers);
  expect(await reflected.text()).toContain(
    JSON.stringify(JSON.stringify(format.body('sim-reflect', false))).slice(1, -1),
  );
});

test.for(formats)('$name without a check ignores unknown members and refuses what it cannot read', async (format) => {
  const lenient = await startTestSimulator({ check: undefined });
  const send = (body: object) => lenient.post(format.path('sim-text', false), body, format.headers);
  const body = format.body('sim-text', false);
  expect((await send({ ...body, made_up: 1 })).status).toBe(200);
  const unreadable = Object.fromEntries(Object.keys(body).map((name) => [name, name === 'model' ? 'sim-text' : 7]));
  expect((await send(unreadable)).status).toBe(400);
});
