import { describe, expect, test } from 'vitest';
import type { Call } from '../provider.ts';
import { encodeChat, translationCall, upstreamAt } from '#test/translation-call.ts';
import { gemini } from './index.ts';

// Cases that test/conformance/cases/gemini.ts cannot express: the less common forms of requests.

const upstream = upstreamAt('http://127.0.0.1/v1beta/');
const encode = (body: object, options: Partial<Call> = {}) =>
  encodeChat(
    gemini,
    translationCall({ model: 'gemini-2.5-flash', messages: [{ role: 'user', content: 'Hi' }], ...body }, options),
    upstream,
  );
const configOf = (body: object, options: Partial<Call> = {}): unknown => encode(body, options).body['generationConfig'];
const refused = (param: string, code = 'unsupported_parameter') =>
  expect.objectContaining({ kind: 'invalid_request', code, param });

describe('generation parameters', () => {
  test.each([
    ['gemini-2.5-flash', 'none', { thinkingBudget: 0 }],
    ['gemini-2.5-pro', 'medium', { thinkingBudget: 8_192 }],
    ['gemini-3-pro-preview', 'medium', { thinkingLevel: 'high' }],
    ['gemini-3.1-pro', 'minimal', { thinkingLevel: 'low' }],
    ['gemini-3-flash', 'minimal', { thinkingLevel: 'minimal' }],
  ])('%s with reasoning_effort %s thinks %j', (model, reasoning_effort, thinkingConfig) => {
    expect(configOf({ model, reasoning_effort })).toEqual({ thinkingConfig });
  });

  test.each([
    ['gemini-2.5-pro', 'none'],
    ['gemini-3-flash', 'none'],
    ['gemini-3-flash', 'xhigh'],
    ['gemini-2.0-flash', 'low'],
  ])('%s does not support reasoning_effort %s', (model, reasoning_effort) => {
    expect(encode({ model, reasoning_effort })).toMatchObject({ dropped: ['reasoning_effort'] });
    expect(configOf({ model, reasoning_effort })).toBeUndefined();
  });

  test('thinking is for those who asked for more than OpenAI’s answers; the native form is for all', () => {
    const thinking = { type: 'enabled', budget_tokens: 2_048 };
    const wanted = { thinkingConfig: { includeThoughts: true, thinkingBudget: 2_048 } };
    expect(configOf({ thinking }, { strict: false })).toEqual(wanted);
    expect(configOf({ thinking: { type: 'disabled' } }, { strict: false })).toEqual({
      thinkingConfig: { thinkingBudget: 0 },
    });
    expect(configOf({ thinking_config: { includeThoughts: true } })).toEqual({
      thinkingConfig: { includeThoughts: true },
    });
  });

  test('native parameters pass in either spelling, under what OpenAI’s names say', () => {
    const { body, dropped } = encode({
      topK: 5,
      media_resolution: 'MEDIA_RESOLUTION_LOW',
      generation_config: { temperature: 0.1, topP: 0.2 },
      temperature: 0.9,
      safetySettings: [{ category: 'c' }],
      cached_content: 'cachedContents/1',
    });
    expect(body).toMatchObject({
      generationConfig: { topK: 5, mediaResolution: 'MEDIA_RESOLUTION_LOW', temperature: 0.9, topP: 0.2 },
      safetySettings: [{ category: 'c' }],
      cachedContent: 'cachedContents/1',
    });
    expect(dropped).toEqual([]);
  });

  test('a schema asks for JSON in its form; a recursive one in the other', () => {
    const format = (schema: object) => ({
      response_format: { type: 'json_schema', json_schema: { name: 'n', schema } },
    });
    const responseMimeType = 'application/json';
    expect(configOf(format({ type: 'object', properties: { a: { type: 'string' } } }))).toEqual({
      responseMimeType,
      responseSchema: { type: 'OBJECT', properties: { a: { type: 'STRING' } } },
    });
    const recursive = { type: 'object', properties: { next: { $ref: '#' } } };
    expect(configOf(format(recursive))).toEqual({ responseMimeType, responseJsonSchema: recursive });
    expect(configOf({ response_format: { type: 'json_object' } })).toEqual({ responseMimeType });
    expect(encode(format({ type: 'number', multipleOf: 2 }))).toMatchObject({
      dropped: ['response_format.json_schema.schema.multipleOf'],
    });
  });

  test('images in an answer need a place for them', () => {
    const response_modalities = ['TEXT', 'IMAGE'];
    expect(() => configOf({ response_modalities })).toThrow(refused('response_modalities'));
    expect(configOf({ response_modalities }, { strict: false })).toEqual({ responseModalities: response_modalities });
  });
});

describe('tools', () => {
  const declare = (...functions: object[]) => functions.map((each) => ({ type: 'function', function: each }));
  const parameters = { type: 'object', properties: { a: { type: 'string', format: 'uri' } } };

  test('are declared with their schemas; one without parameters has none', () => {
    const recursive = { type: 'object', properties: { next: { $ref: '#' } } };
    const empty = { type: 'object', properties: {}, additionalProperties: false };
    const tools = declare(
      { name: 'f', description: 'd', parameters },
      { name: 'g', parameters: recursive },
      { name: 'h', parameters: empty },
    );
    const { body, dropped } = encode({ tools });
    expect(body['tools']).toEqual([
      {
        functionDeclarations: [
          { name: 'f', description: 'd', parameters: { type: 'OBJECT', properties: { a: { type: 'STRING' } } } },
          { name: 'g', parametersJsonSchema: recursive },
          { name: 'h' },
        ],
      },
    ]);
    expect(body).not.toHaveProperty('toolConfig');
    expect(dropped).toEqual(['tools[0].function.parameters.format']);
  });

  test.each([
    ['auto', { mode: 'AUTO' }],
    ['none', { mode: 'NONE' }],
    ['required', { mode: 'ANY' }],
    [
      { type: 'function', function: { name: 'f' } },
      { mode: 'ANY', allowedFunctionNames: ['f'] },
    ],
  ])('tool_choice %j', (tool_choice, functionCallingConfig) => {
    const { body } = encode({ tools: declare({ name: 'f' }), tool_choice });
    expect(body['toolConfig']).toEqual({ functionCallingConfig });
  });

  test('strict is reported as dropped, unless a call is forced, whose schema is enforced', () => {
    const tools = declare({ name: 'f', strict: true });
    expect(encode({ tools }).dropped).toEqual(['tools[0].function.strict']);
    expect(encode({ tools, tool_choice: 'required' }).dropped).toEqual([]);
    expect(encode({ tool_choice: 'required' }).dropped).toEqual(['tool_choice']);
  });
});

describe('the address', () => {
  test.each(['gemini-2.5-flash', 'models/gemini-2.5-flash'])('of %s', (model) => {
    expect(encode({ model }).outbound.path).toBe('/v1beta/models/gemini-2.5-flash:generateContent');
  });

  test('of a tuned model', () => {
    expect(encode({ model: 'tunedModels/mine-1' }).outbound.path).toBe('/v1beta/tunedModels/mine-1:generateContent');
  });

  test.each(['../x', 'a/b', 'a..b', 'models/../x', 'a?b', 'a#b', 'a@b', 'a:b', 'a%2fb', 'a\\b', '.', '', 'a b', 'ä'])(
    'holds no %j',
    (model) => {
      expect(() => encode({ model })).toThrow(refused('model', 'invalid_value'));
    },
  );

  test('the key is a header and nowhere else', () => {
    const { outbound, headers, body } = encode({});
    expect(headers).toEqual({
      accept: 'application/json',
      'x-goog-api-key': 'sk-test-0123456789',
      'content-type': 'application/json',
    });
    expect(JSON.stringify([outbound.origin, outbound.path, body])).not.toContain('sk-test');
  });
});

test('token ids are refused as input of an embedding', () => {
  const call = translationCall({ model: 'gemini-embedding-001', input: [1, 2] }, { operation: 'embeddings' });
  expect(() => gemini.operations.embeddings?.encode(call, upstream)).toThrow(refused('input', 'invalid_value'));
});
