import { describe, expect, test } from 'vitest';
import type { Call } from '../provider.ts';
import { encodeChat, translationCall, upstreamAt } from '#test/translation-call.ts';
import { gemini } from './index.ts';
import { packCallId } from './thought-signature.ts';

// What test/conformance/cases/gemini.ts cannot say: the less common forms of requests.

const upstream = upstreamAt('http://127.0.0.1/v1beta/');
const encode = (body: object, options: Partial<Call> = {}) =>
  encodeChat(
    gemini,
    translationCall({ model: 'gemini-2.5-flash', messages: [{ role: 'user', content: 'Hi' }], ...body }, options),
    upstream,
  );
const contentsOf = (...messages: object[]): unknown => encode({ messages }).body['contents'];
const partsOf = (content: unknown, options: Partial<Call> = {}): unknown => {
  const { body } = encode({ messages: [{ role: 'user', content }] }, options);
  return (body['contents'] as { parts: unknown }[])[0]?.parts;
};
const configOf = (body: object, options: Partial<Call> = {}): unknown => encode(body, options).body['generationConfig'];
const refused = (param: string, code = 'unsupported_parameter') =>
  expect.objectContaining({ kind: 'invalid_request', code, param });
const call = (id: string, name: string, args = '{}', more: object = {}) => ({
  id,
  type: 'function',
  function: { name, arguments: args, ...more },
});
const assistant = (...calls: object[]) => ({ role: 'assistant', content: null, tool_calls: calls });
const tool = (id: string, content: unknown) => ({ role: 'tool', tool_call_id: id, content });

describe('the conversation', () => {
  test('instructions alone are the question', () => {
    const { body } = encode({ messages: [{ role: 'system', content: 'Say hi.' }] });
    expect(body).toMatchObject({ contents: [{ role: 'user', parts: [{ text: 'Say hi.' }] }] });
    expect(body).not.toHaveProperty('systemInstruction');
  });

  test('results stand in the order of their calls, whatever order they come in, and before a text', () => {
    const contents = contentsOf(
      { role: 'user', content: 'Go' },
      assistant(call('c1', 'first'), call('c2', 'second')),
      tool('c2', 'two'),
      tool('c1', '{"one":1}'),
      { role: 'user', content: 'And?' },
    );
    expect(contents).toEqual([
      { role: 'user', parts: [{ text: 'Go' }] },
      {
        role: 'model',
        parts: [
          { functionCall: { id: 'c1', name: 'first', args: {} } },
          { functionCall: { id: 'c2', name: 'second', args: {} } },
        ],
      },
      {
        role: 'user',
        parts: [
          { functionResponse: { id: 'c1', name: 'first', response: { one: 1 } } },
          { functionResponse: { id: 'c2', name: 'second', response: { output: 'two' } } },
          { text: 'And?' },
        ],
      },
    ]);
  });

  test('a result that JavaScript would round stays text', () => {
    const contents = contentsOf(assistant(call('c1', 'f')), tool('c1', '{"id":12345678901234567890}'));
    expect(JSON.stringify(contents)).toContain('{"output":"{\\"id\\":12345678901234567890}"}');
  });

  test('a result without its call is refused', () => {
    expect(() => contentsOf({ role: 'user', content: 'Go' }, tool('c9', 'x'))).toThrow(
      refused('messages[1].tool_call_id', 'invalid_value'),
    );
  });

  test('an image that a tool sent stands behind the results', () => {
    const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } };
    const contents = contentsOf(assistant(call('c1', 'shot')), tool('c1', [{ type: 'text', text: 'done' }, image]));
    expect(contents).toMatchObject([
      {},
      {
        parts: [
          { functionResponse: { name: 'shot', response: { output: 'done' } } },
          { inlineData: { mimeType: 'image/png', data: 'AAAA' } },
        ],
      },
    ]);
  });

  test('deprecated functions are calls and results, too', () => {
    const { body } = encode({
      functions: [{ name: 'time' }],
      function_call: { name: 'time' },
      messages: [
        { role: 'user', content: 'Time?' },
        { role: 'assistant', content: null, function_call: { name: 'time', arguments: '' } },
        { role: 'function', name: 'time', content: 'noon' },
      ],
    });
    expect(body).toMatchObject({
      contents: [
        {},
        { role: 'model', parts: [{ functionCall: { name: 'time', args: {} } }] },
        { role: 'user', parts: [{ functionResponse: { name: 'time', response: { output: 'noon' } } }] },
      ],
      tools: [{ functionDeclarations: [{ name: 'time' }] }],
      toolConfig: { functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['time'] } },
    });
  });
});

describe('thought signatures', () => {
  const partsFor = (model: string, ...calls: object[]): unknown =>
    (encode({ model, messages: [assistant(...calls)] }).body['contents'] as { parts: unknown }[])[0]?.parts;

  test('come out of the id, out of the function, or out of what Google’s own OpenAI endpoint writes', () => {
    const id = packCallId({ ownId: 'fc1', signature: 'c2ln' }, 'unused');
    expect(partsFor('gemini-3-pro', call(id, 'f'), call('call_2', 'g'))).toEqual([
      { functionCall: { id: 'fc1', name: 'f', args: {} }, thoughtSignature: 'c2ln' },
      { functionCall: { name: 'g', args: {} } },
    ]);
    expect(partsFor('gemini-3-pro', call('call_1', 'f', '{}', { thought_signature: 'c2ln' }))).toMatchObject([
      { thoughtSignature: 'c2ln' },
    ]);
    const google = { ...call('call_1', 'f'), extra_content: { google: { thought_signature: 'c2ln' } } };
    expect(partsFor('gemini-3-pro', google)).toMatchObject([{ thoughtSignature: 'c2ln' }]);
  });

  test('of calls that another model made are replaced by the one that Google documents, since Gemini 3 only', () => {
    const calls = [call('call_1', 'f'), call('toolu_2', 'g')];
    expect(partsFor('gemini-3-pro', ...calls)).toEqual([
      { functionCall: { name: 'f', args: {} }, thoughtSignature: 'skip_thought_signature_validator' },
      { functionCall: { name: 'g', args: {} } },
    ]);
    expect(JSON.stringify(partsFor('gemini-2.5-pro', ...calls))).not.toContain('thoughtSignature');
  });

  test('of texts and images return in content_blocks, thoughts do not', () => {
    const content_blocks = [
      { type: 'thinking', thinking: 'Hm.', signature: 'other' },
      { type: 'text', text: 'Yes', signature: 'c2ln' },
      { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' }, signature: 'aW1n' },
    ];
    expect(contentsOf({ role: 'assistant', content: 'Yes', content_blocks })).toEqual([
      {
        role: 'model',
        parts: [
          { text: 'Yes', thoughtSignature: 'c2ln' },
          { inlineData: { mimeType: 'image/png', data: 'AAAA' }, thoughtSignature: 'aW1n' },
        ],
      },
    ]);
    const thinkingOnly = [{ type: 'thinking', thinking: 'Hm.' }];
    expect(contentsOf({ role: 'assistant', content: 'Yes', content_blocks: thinkingOnly })).toEqual([
      { role: 'model', parts: [{ text: 'Yes' }] },
    ]);
  });
});

describe('media', () => {
  const image = (url: string, more: object = {}) => [{ type: 'image_url', image_url: { url, ...more } }];
  const file = (members: object) => [{ type: 'file', file: members }];

  test.each([
    [image('data:image/png;base64,AAAA'), { inlineData: { mimeType: 'image/png', data: 'AAAA' } }],
    [image('https://x.test/a.JPG?s=1'), { fileData: { mimeType: 'image/jpeg', fileUri: 'https://x.test/a.JPG?s=1' } }],
    [image('gs://bucket/a.webp'), { fileData: { mimeType: 'image/webp', fileUri: 'gs://bucket/a.webp' } }],
    [
      image('https://x.test/a', { mime_type: 'image/png' }),
      { fileData: { mimeType: 'image/png', fileUri: 'https://x.test/a' } },
    ],
    [image('https://youtu.be/abc'), { fileData: { mimeType: 'video/mp4', fileUri: 'https://youtu.be/abc' } }],
    [
      file({ file_id: 'files/abc-1' }),
      { fileData: { fileUri: 'https://generativelanguage.googleapis.com/v1beta/files/abc-1' } },
    ],
    [
      file({ file_data: 'data:application/pdf;base64,AAAA' }),
      { inlineData: { mimeType: 'application/pdf', data: 'AAAA' } },
    ],
    [
      [{ type: 'input_audio', input_audio: { data: 'AAAA', format: 'mp3' } }],
      { inlineData: { mimeType: 'audio/mp3', data: 'AAAA' } },
    ],
  ])('%j', (content, part) => {
    expect(partsOf(content)).toEqual([part]);
  });

  test('URLs that do not tell the type are fetched and sent as bytes, as are those of plain http', () => {
    const urls = ['https://x.test/image?id=1', 'http://x.test/a.png'];
    const content = urls.flatMap((url) => image(url));
    const resources = new Map(urls.map((url) => [url, { contentType: 'image/gif', bytes: Buffer.from('GIF') }]));
    const messages = [{ role: 'user', content: [...content, ...image('https://x.test/b.png')] }];
    expect(gemini.operations.chat?.resourcesOf?.(translationCall({ messages }))).toEqual(urls);
    expect(partsOf(content, { resources })).toEqual([
      { inlineData: { mimeType: 'image/gif', data: 'R0lG' } },
      { inlineData: { mimeType: 'image/png', data: 'R0lG' } },
    ]);
  });

  test('what is no file that Gemini reads is refused', () => {
    const url = 'https://x.test/page';
    const resources = new Map([[url, { contentType: 'application/octet-stream', bytes: Buffer.from('') }]]);
    expect(() => partsOf(image(url), { resources })).toThrow(refused('messages[0].content[0]', 'resource_unavailable'));
    expect(() => partsOf(image('gs://bucket/a'))).toThrow(refused('messages[0].content[0]'));
    expect(() => partsOf(image('file:///etc/passwd.png'))).toThrow(refused('messages[0].content[0]'));
    expect(() => partsOf(file({ file_id: '../../secret' }))).toThrow(refused('messages[0].content[0]'));
    expect(() => partsOf([{ type: 'video_url' }])).toThrow(refused('messages[0].content[0]'));
  });
});

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
  ])('%s cannot be told reasoning_effort %s', (model, reasoning_effort) => {
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

  test('strict is told to be dropped, unless a call is forced and so bound to its schema', () => {
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
