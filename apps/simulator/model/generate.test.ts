import { expect, test } from 'vitest';
import { generate, onlyGeneration, type GenerateRequest } from './generate.ts';
import { hashText } from './hash.ts';
import { countTokens } from './tokens.ts';

const ask = (fields: Partial<GenerateRequest> = {}): GenerateRequest => ({
  hash: hashText('question'),
  lastUserText: 'question',
  endsWithToolResult: false,
  rawBody: '{}',
  promptTokens: 5,
  choiceCount: 1,
  tokensMax: undefined,
  stop: [],
  tools: [],
  toolUse: 'auto',
  parallelToolUse: true,
  jsonSchema: undefined,
  ...fields,
});
const write = { manner: 'write' } as const;
const textOf = (fields: Partial<GenerateRequest>) => generate(ask(fields), write).generations[0]?.text ?? '';

test('the same request has the same answer, another request another', () => {
  expect(generate(ask(), write)).toEqual(generate(ask(), write));
  expect(textOf({ hash: hashText('other') })).not.toBe(textOf({}));
});

test('answers vary in length', () => {
  const lengths = Array.from({ length: 200 }, (_, index) => countTokens(textOf({ hash: hashText(`prompt ${index}`) })));
  expect(Math.min(...lengths)).toBeLessThan(25);
  expect(Math.max(...lengths)).toBeGreaterThan(120);
});

test('the tokens told are those of the text, whatever limits it', () => {
  for (let index = 0; index < 300; index++) {
    const fields = {
      hash: hashText(`prompt ${index}`),
      tokensMax: [undefined, 20, 90][index % 3],
      stop: index % 4 === 0 ? ['which', ' most'] : [],
    };
    const { text, tokens } = onlyGeneration(generate(ask(fields), index % 5 === 0 ? { ...write, tokens: 70 } : write));
    expect(tokens).toBe(countTokens(text ?? ''));
  }
});

test('choices differ and their tokens add up', () => {
  const answer = generate(ask({ choiceCount: 3 }), write);
  expect(new Set(answer.generations.map(({ text }) => text)).size).toBe(3);
  expect(answer.completionTokens).toBe(answer.generations.reduce((sum, { text }) => sum + countTokens(text ?? ''), 0));
});

test('a limit cuts the text that would have been written and says so', () => {
  const whole = textOf({});
  const [limited] = generate(ask({ tokensMax: 5 }), write).generations;
  expect(limited).toMatchObject({ finish: 'length', tokens: 5 });
  expect(whole.startsWith(limited?.text ?? 'x')).toBe(true);
  expect(generate(ask({ tokensMax: 0 }), write).generations[0]).toMatchObject({
    text: '',
    finish: 'length',
    tokens: 0,
  });
  expect(generate(ask({ tokensMax: countTokens(whole) }), write).generations[0]).toMatchObject({
    text: whole,
    finish: 'stop',
  });
});

test('a stop sequence ends the text before itself, the earliest of several wins', () => {
  const whole = textOf({});
  const late = whole.slice(20, 24);
  const early = whole.slice(9, 13);
  expect(textOf({ stop: [late, early, ''] })).toBe(whole.slice(0, Math.min(whole.indexOf(early), whole.indexOf(late))));
});

test('an exact length is met to the token', () => {
  for (const tokens of [1, 16, 500]) {
    const [generation] = generate(ask(), { manner: 'write', tokens }).generations;
    expect(generation).toMatchObject({ tokens, finish: 'stop' });
    expect(countTokens(generation?.text ?? '')).toBe(tokens);
  }
});

test('tools are called when named, never again after their result unless required', () => {
  const tools = [
    { name: 'get_time', kind: 'function', parameters: undefined },
    {
      name: 'get_weather',
      kind: 'function',
      parameters: { properties: { city: { type: 'string' } }, required: ['city'] },
    },
  ] as const;
  const called = (fields: Partial<GenerateRequest>) =>
    generate(ask({ tools, ...fields }), write).generations[0]?.toolCalls.map(({ name }) => name);
  const both = 'call GET_WEATHER, then get_time!';
  expect(called({ lastUserText: both })).toEqual(['get_time', 'get_weather']);
  expect(called({ lastUserText: both, parallelToolUse: false })).toEqual(['get_time']);
  expect(called({ lastUserText: both, toolUse: 'none' })).toEqual([]);
  expect(called({ lastUserText: both, endsWithToolResult: true })).toEqual([]);
  expect(called({ lastUserText: 'get_times and forget_weather' })).toEqual([]);
  expect(called({ toolUse: 'required' })).toHaveLength(1);
  expect(called({ toolUse: { name: 'get_weather' } })).toEqual(['get_weather']);
  const [generation] = generate(ask({ tools, toolUse: { name: 'get_weather' } }), write).generations;
  expect(generation).toMatchObject({ text: null, finish: 'tool_calls' });
  expect(JSON.parse(generation?.toolCalls[0]?.input ?? '')).toEqual({ city: expect.any(String) });
});

test('echo and reflect answer what was sent, and only reflect ignores limits', () => {
  const request = ask({ lastUserText: 'one two three', rawBody: '{"a":1, "a":2}', tokensMax: 1, stop: ['a'] });
  expect(generate(request, { manner: 'reflect' }).generations[0]?.text).toBe('{"a":1, "a":2}');
  expect(generate(request, { manner: 'echo' }).generations[0]).toMatchObject({ text: 'one', finish: 'length' });
});
