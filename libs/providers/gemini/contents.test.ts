import { describe, expect, test } from 'vitest';
import type { Call } from '../provider.ts';
import { encodeChat, translationCall, upstreamAt } from '#test/translation-call.ts';
import { gemini } from './index.ts';
import { packCallId } from './thought-signature.ts';

// Cases that test/conformance/cases/gemini.ts cannot express: the less common forms of messages.

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
