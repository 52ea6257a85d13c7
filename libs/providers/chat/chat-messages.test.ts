import { describe, expect, test } from 'vitest';
import { readChatMessages } from './chat-messages.ts';
import { joinText, mediaUrls } from '../turns/turn-request.ts';

const refusal = (param: string, code = 'invalid_value') =>
  expect.objectContaining({ kind: 'invalid_request', code, param });

describe('messages', () => {
  test('are divided into instructions and turns, each with its location', () => {
    const read = readChatMessages([
      { role: 'system', content: 'A' },
      { role: 'user', content: 'hi', name: 'Ann' },
      {
        role: 'developer',
        content: [
          { type: 'text', text: 'B' },
          { type: 'text', text: 'C', cache_control: 1 },
        ],
      },
    ]);
    expect(read.system.map(({ text, param }) => [text, param])).toEqual([
      ['A', 'messages[0].content'],
      ['B', 'messages[2].content[0]'],
      ['C', 'messages[2].content[1]'],
    ]);
    expect(read.messages).toMatchObject([
      { role: 'user', param: 'messages[1]', parts: [{ type: 'text', text: 'hi' }] },
    ]);
    expect(read.hints).toEqual(['messages[1].name']);
  });

  test('with a mark for caching pass it on to the texts of an instruction that have none', () => {
    const mark = { type: 'ephemeral' };
    const { system } = readChatMessages([{ role: 'system', content: 'A', cache_control: mark }]);
    expect(system[0]?.raw).toEqual({ cache_control: mark });
  });

  test('of tools know the name of the call that they answer', () => {
    const { messages } = readChatMessages([
      {
        role: 'assistant',
        tool_calls: [{ id: 'c1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }],
      },
      { role: 'tool', tool_call_id: 'c1', content: 'x' },
      { role: 'tool', tool_call_id: 'c2', content: 'y' },
    ]);
    expect(messages).toMatchObject([
      { role: 'assistant', parts: [], toolCalls: [{ id: 'c1', name: 'f', input: { a: 1 } }] },
      { role: 'tool', toolCallId: 'c1', toolName: 'f' },
      { role: 'tool', toolCallId: 'c2', toolName: null },
    ]);
  });

  test('in the deprecated form become a call and its result, with one id that stays over the turns', () => {
    const talk = [
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: null, function_call: { name: 'f', arguments: '' } },
      { role: 'function', name: 'f', content: 'x' },
    ];
    const first = readChatMessages(talk).messages;
    expect(first).toMatchObject([
      { role: 'user' },
      { role: 'assistant', toolCalls: [{ id: 'call_function_1', name: 'f', input: {} }] },
      { role: 'tool', toolCallId: 'call_function_1', toolName: 'f', parts: [{ text: 'x' }] },
    ]);
    const later = readChatMessages([...talk, { role: 'user', content: 'more' }]).messages;
    expect(later.slice(0, 3)).toEqual(first);
  });

  test.each(['{"a":', '[1]', '"a"', '7'])('with arguments that are no JSON object are refused: %s', (text) => {
    const call = { id: 'c1', type: 'function', function: { name: 'f', arguments: text } };
    expect(() =>
      readChatMessages([
        { role: 'user', content: 'x' },
        { role: 'assistant', tool_calls: [call] },
      ]),
    ).toThrow(refusal('messages[1].tool_calls[0].function.arguments'));
  });

  test('of an unknown role, and instructions with images, are refused', () => {
    expect(() => readChatMessages([{ role: 'critic', content: 'x' }])).toThrow(refusal('messages[0].role'));
    const image = { type: 'image_url', image_url: { url: 'https://a.example/x.png' } };
    expect(() => readChatMessages([{ role: 'system', content: [image] }])).toThrow(refusal('messages[0].content[0]'));
  });
});

describe('parts', () => {
  const partsOf = (...content: object[]) => {
    const { messages, hints } = readChatMessages([{ role: 'user', content }]);
    return { parts: messages[0]?.parts, hints, messages };
  };

  test('hold images by address, by data and by their detail', () => {
    const { parts, hints } = partsOf(
      { type: 'image_url', image_url: { url: 'https://a.example/x.png', detail: 'low' } },
      { type: 'image_url', image_url: { url: 'data:image/PNG;base64,AAAA', detail: 'auto' } },
    );
    expect(parts).toMatchObject([
      { type: 'image', media: { kind: 'url', url: 'https://a.example/x.png' }, detail: 'low' },
      { type: 'image', media: { kind: 'bytes', mediaType: 'image/png', base64: 'AAAA' } },
    ]);
    expect(hints).toEqual(['messages[0].content[0].image_url.detail']);
  });

  test('hold files by data, by bare base64, by address and by id', () => {
    const { parts } = partsOf(
      { type: 'file', file: { filename: 'a.pdf', file_data: 'data:application/pdf;base64,AAAA' } },
      { type: 'file', file: { file_data: 'AAAA', mime_type: 'text/csv' } },
      { type: 'file', file: { file_data: 'AAAA', filename: 'notes.txt' } },
      { type: 'file', file: { file_url: 'https://a.example/b.pdf' } },
      { type: 'file', file: { file_id: 'file-1' } },
    );
    expect(parts).toMatchObject([
      { name: 'a.pdf', media: { mediaType: 'application/pdf', base64: 'AAAA' } },
      { name: null, media: { mediaType: 'text/csv' } },
      { media: { mediaType: 'text/plain' } },
      { media: { kind: 'url', url: 'https://a.example/b.pdf' } },
      { media: { kind: 'id', id: 'file-1' } },
    ]);
  });

  test('hold sound, and what nobody knows yet', () => {
    const { parts } = partsOf({ type: 'input_audio', input_audio: { data: 'AAAA', format: 'mp3' } }, { type: 'smell' });
    expect(parts).toMatchObject([
      { type: 'audio', base64: 'AAAA', format: 'mp3' },
      { type: 'unknown', name: 'smell' },
    ]);
  });

  test.each([
    ['data:image/png;base64', 'url'],
    ['data:;base64,AAAA', 'url'],
    ['data:image/png;base64,%%%', 'url'],
    ['data:text/plain,%zz', 'url'],
    ['x.png', 'url'],
  ])('with an address that cannot be read are refused: %s', (url, member) => {
    expect(() => partsOf({ type: 'image_url', image_url: { url } })).toThrow(
      refusal(`messages[0].content[0].image_url.${member}`),
    );
  });

  test('without their data are refused', () => {
    expect(() => partsOf({ type: 'file', file: {} })).toThrow(refusal('messages[0].content[0].file'));
    expect(() => partsOf({ type: 'input_audio', input_audio: {} })).toThrow(
      refusal('messages[0].content[0].input_audio.data'),
    );
  });

  test('name the http addresses that must be fetched, and no others', () => {
    const { messages } = partsOf(
      { type: 'image_url', image_url: { url: 'https://a.example/x.png' } },
      { type: 'image_url', image_url: { url: 's3://bucket/x.png' } },
      { type: 'image_url', image_url: { url: 'data:text/plain,a%20b' } },
    );
    expect(mediaUrls({ messages })).toEqual(['https://a.example/x.png']);
    expect(messages[0]?.parts[2]).toMatchObject({ media: { base64: Buffer.from('a b').toString('base64') } });
  });

  test('of text are put together as they stand', () => {
    const { parts = [] } = partsOf({ type: 'text', text: 'a ' }, { type: 'refusal', refusal: 'b' }, { type: 'smell' });
    expect(joinText(parts)).toBe('a b');
  });
});
