import { expect, test } from 'vitest';
import { eventsOf, startTestSimulator, type Json } from '#test/test-simulator.ts';
import { membersOf, parsePayload } from '#test/fixtures/provider-payloads.ts';

type Part = {
  text?: string;
  thought?: boolean;
  functionCall?: { name: string; args: Json };
  thoughtSignature?: string;
};
type Candidate = { content: { parts: Part[] }; finishReason?: string; index: number };
type Answer = { candidates: Candidate[]; usageMetadata: Record<string, number>; promptFeedback?: Json };

const { post } = await startTestSimulator();
const key = { 'x-goog-api-key': 'AIza-test', authorization: '' };
const user = (...parts: unknown[]) => ({ role: 'user', parts });
const ask = (fields: Json = {}, model = 'gemini-2.0-flash', method = 'generateContent') =>
  post(`/v1beta/models/${model}:${method}`, { contents: [user({ text: 'Hello' })], ...fields }, key);
const complete = async (fields: Json = {}, model?: string) => (await (await ask(fields, model)).json()) as Answer;
const stream = async (fields: Json = {}, model?: string) =>
  eventsOf(await (await ask(fields, model, 'streamGenerateContent?alt=sse')).text()).map(
    ({ data }) => data,
  ) as unknown as Answer[];
const getFailureCode = async (response: Response) => ((await response.json()) as { error: Json }).error;
const tools = [
  {
    functionDeclarations: [
      {
        name: 'get_weather',
        parameters: { type: 'OBJECT', properties: { city: { type: 'STRING' } }, required: ['city'] },
      },
      { name: 'get_time' },
    ],
  },
];
const both = [user({ text: 'get_weather and get_time' })];

test('Gemini 3 wants the signature of its calls back, on the first of each step', async () => {
  const { candidates } = await complete({ tools, contents: both }, 'gemini-3-pro-preview');
  const parts = candidates[0]?.content.parts ?? [];
  expect(parts.map(({ thoughtSignature }) => thoughtSignature !== undefined)).toEqual([true, false]);
  expect(candidates[0]).toMatchObject({ finishReason: 'STOP' });
  const results = user(
    ...parts.map(({ functionCall }) => ({ functionResponse: { name: functionCall?.name, response: { ok: true } } })),
  );
  const next = (sent: unknown[], model = 'gemini-3-pro-preview') =>
    ask({ tools, contents: [...both, { role: 'model', parts: sent }, results] }, model);
  expect((await next(parts)).status).toBe(200);
  const unsigned = parts.map(({ functionCall }) => ({ functionCall }));
  const refused = await next(unsigned);
  expect([refused.status, (await getFailureCode(refused))['message']]).toEqual([
    400,
    expect.stringContaining('missing a thought_signature'),
  ]);
  expect((await next(unsigned, 'gemini-2.5-flash')).status).toBe(200);
  expect((await next([{ ...unsigned[0], thoughtSignature: 'AAAA' }, unsigned[1]])).status).toBe(400);
  expect(
    (await next([{ ...unsigned[0], thoughtSignature: 'skip_thought_signature_validator' }, unsigned[1]])).status,
  ).toBe(200);
});

test('a blocked prompt has no candidates, a filtered answer says SAFETY', async () => {
  for (const payload of [await complete({}, 'm__refuse'), ...(await stream({}, 'm__refuse'))]) {
    expect(payload).toMatchObject({ promptFeedback: { blockReason: 'PROHIBITED_CONTENT' } });
    expect(payload).not.toHaveProperty('candidates');
  }
  expect((await complete({}, 'sim-fault-content-filter')).candidates[0]?.finishReason).toBe('SAFETY');
});

const callTurn = { role: 'model', parts: [{ functionCall: { name: 'get_time', args: {} } }] };
test.for<[string, Json]>([
  ['Unknown name "foo": Cannot find field.', { foo: 1 }],
  [`Unknown name "maxTokens" at 'generation_config'`, { generationConfig: { maxTokens: 1 } }],
  [
    `Unknown name "additionalProperties" at 'generation_config.response_schema'`,
    {
      generationConfig: {
        responseMimeType: 'application/json',
        responseSchema: { type: 'object', additionalProperties: false },
      },
    },
  ],
  [
    `Unknown name "$ref" at 'tools[0].function_declarations[0].parameters'`,
    { tools: [{ functionDeclarations: [{ name: 'f', parameters: { $ref: '#' } }] }] },
  ],
  ['valid role: user, model', { contents: [{ role: 'system', parts: [{ text: 'x' }] }] }],
  ['parts must not be empty', { contents: [user()] }],
  ["required oneof field 'data'", { contents: [user({ thought: true })] }],
  ['stop_sequences', { generationConfig: { stopSequences: 'x' } }],
  ['immediately after a function call turn', { contents: [user({ functionResponse: { name: 'f', response: {} } })] }],
  ['number of function response parts is equal', { contents: [...both, callTurn, user({ text: 'x' })] }],
  [
    "'other' was not called",
    { contents: [...both, callTurn, user({ functionResponse: { name: 'other', response: {} } })] },
  ],
])('a request is refused: %s', async ([message, fields]) => {
  const response = await ask(fields);
  expect(await getFailureCode(response)).toMatchObject({
    code: 400,
    status: 'INVALID_ARGUMENT',
    message: expect.stringContaining(message),
  });
  expect(response.status).toBe(400);
});

test('a 429 says in its body when to retry, and an invalid key has another error than none', async () => {
  const limited = await ask({}, 'sim-fault-429-after-30');
  expect([limited.status, limited.headers.get('retry-after')]).toEqual([429, null]);
  expect(await getFailureCode(limited)).toMatchObject({
    status: 'RESOURCE_EXHAUSTED',
    details: [{}, { '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '30s' }],
  });
  expect((await getFailureCode(await ask({}, 'sim-fault-429-none')))['details']).toHaveLength(1);
  const anonymous = await post('/v1beta/models/m:generateContent', {}, { authorization: '' });
  expect([anonymous.status, (await getFailureCode(anonymous))['status']]).toEqual([403, 'PERMISSION_DENIED']);
  const wrong = await post('/v1beta/models/m:generateContent?key=invalid', {}, { authorization: '' });
  expect([wrong.status, await getFailureCode(wrong)]).toMatchObject([
    400,
    { details: [{ reason: 'API_KEY_INVALID' }] },
  ]);
  expect((await stream({}, 'sim-fault-error-in-stream-late')).at(-1)).toMatchObject({
    error: { code: 503, status: 'UNAVAILABLE' },
  });
});

test('answers have the members of real ones', async () => {
  const cases: [string, Json][] = [
    ['google-text', {}],
    ['google-reasoning', {}],
    ['google-tool-call', { tools, contents: [user({ text: 'get_weather' })] }],
  ];
  for (const [name, fields] of cases) {
    const known = (value: unknown) => membersOf(value).filter((member) => !/functionCall\.args\./.test(member));
    expect(known(await complete(fields, 'gemini-3-pro-preview'))).toEqual(known(parsePayload(`${name}.json`)));
    const events = known(await stream(fields, 'gemini-3-pro-preview'));
    expect(events).toEqual(known(parsePayload(`${name}.chunks.txt`)));
  }
  const limited = (await (await ask({}, 'sim-fault-429')).json()) as Json;
  expect(membersOf(limited)).toEqual(membersOf(parsePayload('google-429-retry-info.json')));
});
