import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { jsonValues } from '#test/json-values.ts';
import { decodeAll, translationCall, upstreamAt } from '#test/translation-call.ts';
import { findProvider } from '../registry.ts';
import type { Translation } from '../provider.ts';
import { readChatRequest } from './chat-request.ts';
import { encodeCompletionRequest } from './encode-request.ts';
import { throughChat } from './through-chat.ts';

// The dialect here is chat itself, so that what goes through the canonical turn can be compared with what came in.

const encode = (body: object, signer = 'acme') => {
  const call = translationCall({ model: 'm', ...body });
  return encodeCompletionRequest(readChatRequest({ model: 'm', ...body }, 'm'), call, signer);
};

describe('a request', () => {
  const text = fc.string({ minLength: 1 });
  const tool = fc.record({
    name: fc.stringMatching(/^[a-z]{1,8}$/),
    arguments: fc.dictionary(fc.string(), jsonValues()),
  });
  const user = fc
    .array(
      fc.oneof(
        text.map((said) => ({ type: 'text', text: said })),
        fc.constant({ type: 'image_url', image_url: { url: 'https://example.com/a.png' } }),
        fc.constant({ type: 'image_url', image_url: { url: 'data:image/png;base64,aaaa' } }),
        fc.constant({ type: 'input_audio', input_audio: { data: 'aaaa', format: 'mp3' } }),
        fc.constant({ type: 'file', file: { filename: 'a.pdf', file_data: 'data:application/pdf;base64,aaaa' } }),
      ),
      { minLength: 1, maxLength: 3 },
    )
    // A message that is only text has it as such.
    .map((parts) => ({
      role: 'user',
      content: parts.every(({ type }) => type === 'text')
        ? parts.map((part) => ('text' in part ? part.text : '')).join('')
        : parts,
    }));
  const exchange = fc.array(tool, { maxLength: 3 }).chain((tools) =>
    fc.tuple(user, text).map(([asked, said]) => [
      asked,
      tools.length === 0
        ? { role: 'assistant', content: said }
        : {
            role: 'assistant',
            content: said,
            tool_calls: tools.map((called, index) => ({
              id: `call_${index}`,
              type: 'function',
              function: { name: called.name, arguments: JSON.stringify(called.arguments) },
            })),
          },
      ...tools.map((_tool, index) => ({ role: 'tool', tool_call_id: `call_${index}`, content: said })),
    ]),
  );

  test('is the same after it has been read and written', () => {
    fc.assert(
      fc.property(fc.array(exchange, { minLength: 1, maxLength: 4 }), fc.option(text), (exchanges, instruction) => {
        const system = instruction === null ? [] : [{ role: 'system', content: instruction }];
        const messages = [...system, ...exchanges.flat(), { role: 'user', content: 'And now?' }];
        expect(encode({ messages })).toEqual({ body: { model: 'm', messages }, dropped: [] });
      }),
      { numRuns: 200 },
    );
  });

  test('keeps its tools, its form of answer and its parameters', () => {
    const body = {
      messages: [{ role: 'user', content: 'hi' }],
      tools: [
        { type: 'function', function: { name: 'f', description: 'd', parameters: { type: 'object' }, strict: true } },
      ],
      tool_choice: { type: 'function', function: { name: 'f' } },
      parallel_tool_calls: false,
      response_format: { type: 'json_schema', json_schema: { name: 'n', schema: { type: 'object' }, strict: true } },
      stop: ['END'],
      max_completion_tokens: 5,
      temperature: 0.5,
      top_p: 0.9,
      seed: 7,
      user: 'u',
      reasoning_effort: 'low',
    };
    expect(encode(body)).toEqual({ body: { model: 'm', ...body }, dropped: [] });
  });

  test('loses hints that only some servers know, by name', () => {
    const { body, dropped } = encode({ messages: [{ role: 'user', content: 'hi' }], top_k: 3, prompt_cache_key: 'k' });
    expect(dropped).toEqual(['top_k', 'prompt_cache_key']);
    expect(body).toEqual({ model: 'm', messages: [{ role: 'user', content: 'hi' }] });
  });

  test('has reasoning only in an open loop of tool calls, for the provider that wrote it', () => {
    const called = {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }],
      content_blocks: [{ type: 'thinking', thinking: 'hm', signer: 'acme' }],
    };
    const result = { role: 'tool', tool_call_id: 'c', content: 'r' };
    const messages = [{ role: 'user', content: 'hi' }, called, result];
    const sent = ({ body }: ReturnType<typeof encode>) => (body['messages'] as object[])[1];
    expect(sent(encode({ messages }))).toMatchObject({ reasoning_content: 'hm' });
    expect(sent(encode({ messages }, 'other'))).not.toHaveProperty('reasoning_content');
    expect(encode({ messages }, 'other').dropped).toEqual(['reasoning']);
    const more = { role: 'user', content: 'and?' };
    // Agents add a message to the results.
    expect(sent(encode({ messages: [...messages, more] }))).toMatchObject({ reasoning_content: 'hm' });
    const finished = encode({ messages: [...messages, { role: 'assistant', content: 'Done.' }, more] });
    expect(sent(finished)).not.toHaveProperty('reasoning_content');
    expect(finished.dropped).toEqual(['reasoning']);
  });

  test('sends images of a tool after its results, because a result can only be text', () => {
    const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,aaaa' } };
    const calls = ['a', 'b'].map((id) => ({ id, type: 'function', function: { name: 'f', arguments: '{}' } }));
    const messages = [
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: null, tool_calls: calls },
      { role: 'tool', tool_call_id: 'a', content: [{ type: 'text', text: 'see' }, image] },
      { role: 'tool', tool_call_id: 'b', content: 'none' },
    ];
    expect((encode({ messages }).body['messages'] as object[]).slice(2)).toEqual([
      { role: 'tool', tool_call_id: 'a', content: 'see' },
      { role: 'tool', tool_call_id: 'b', content: 'none' },
      { role: 'user', content: [image] },
    ]);
  });
});

const chat = findProvider('openai')?.operations.chat as Translation;
const translation = throughChat(chat, 'acme');
const loose = translationCall({ model: 'm', messages: [{ role: 'user', content: 'hi' }] }, { strict: false });

describe('an answer', () => {
  const usage = {
    prompt_tokens: 3,
    completion_tokens: 4,
    total_tokens: 7,
    prompt_tokens_details: { cached_tokens: 1 },
    completion_tokens_details: { reasoning_tokens: 2 },
  };

  test('keeps text, calls, refusal, reason and usage; reasoning becomes a block', () => {
    const call = { id: 'c', type: 'function', function: { name: 'f', arguments: '{"a":1}' } };
    const message = { role: 'assistant', content: 'Hi', refusal: null, tool_calls: [call] };
    const answer = {
      id: 'x',
      object: 'chat.completion',
      created: 7,
      model: 'm-1',
      choices: [
        { index: 0, message: { ...message, reasoning_content: 'hm' }, logprobs: null, finish_reason: 'tool_calls' },
      ],
      usage,
    };
    const blocks = [
      { type: 'thinking', thinking: 'hm' },
      { type: 'text', text: 'Hi' },
    ];
    const shown = { ...message, content_blocks: blocks };
    expect(translation.decode?.(answer, loose)).toEqual({
      ...answer,
      choices: [{ index: 0, message: shown, logprobs: null, finish_reason: 'tool_calls' }],
    });
  });

  test('in a stream has the same parts', () => {
    const chunk = (delta: object, reason: string | null = null) => ({
      data: JSON.stringify({
        id: 'x',
        object: 'chat.completion.chunk',
        created: 7,
        model: 'm-1',
        choices: [{ index: 0, delta, finish_reason: reason }],
      }),
    });
    const called = (more: object, fragment: string) => ({
      tool_calls: [{ index: 0, ...more, function: { name: 'f', arguments: fragment } }],
    });
    const decoder = translation.openStream?.(loose);
    expect(decoder).toBeDefined();
    if (!decoder) return;
    const { chunks, done, error } = decodeAll(decoder, [
      chunk({ role: 'assistant', content: '' }),
      chunk({ reasoning: 'h' }),
      chunk({ reasoning: 'm' }),
      chunk({ content: 'Hi' }),
      chunk(called({ id: 'c', type: 'function' }, '{"a"')),
      chunk(called({}, ':1}')),
      chunk({}, 'tool_calls'),
      { data: JSON.stringify({ id: 'x', choices: [], usage }) },
      { data: '[DONE]' },
    ]);
    const deltas = chunks.map(({ choices }) => (choices as { delta: object }[])[0]?.delta);
    expect(deltas).toEqual([
      { role: 'assistant', content: '', refusal: null },
      { content_blocks: [{ index: 0, delta: { thinking: 'h' } }] },
      { content_blocks: [{ index: 0, delta: { thinking: 'm' } }] },
      { content: 'Hi', content_blocks: [{ index: 1, delta: { text: 'Hi' } }] },
      { tool_calls: [{ index: 0, id: 'c', type: 'function', function: { name: 'f', arguments: '' } }] },
      { tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] },
      { tool_calls: [{ index: 0, function: { arguments: ':1}' } }] },
      {},
      undefined,
    ]);
    expect(chunks.at(-1)).toMatchObject({ usage });
    expect([done, error]).toEqual([true, null]);
  });

  test.each([
    ['choices', { choices: [{ index: 128, delta: { content: 'x' } }] }],
    [
      'calls',
      {
        choices: [
          { delta: { tool_calls: Array.from({ length: 1_025 }, (_call, index) => ({ index, id: `c${index}` })) } },
        ],
      },
    ],
  ])('with more %s than any model has is refused, because each takes memory', (what, chunk) => {
    const decoder = translation.openStream?.(loose);
    expect(() => decoder?.push({ data: JSON.stringify(chunk) })).toThrow(`${what} in one answer`);
  });

  test('that is an error in the stream is one', () => {
    const decoder = translation.openStream?.(loose);
    const data = JSON.stringify({ error: { message: 'overloaded', code: 503 } });
    expect(decoder?.push({ data })).toMatchObject({ payloads: [], error: { error: { message: 'overloaded' } } });
  });
});

test('the request goes to the address of chat, with the key and with usage in a stream', () => {
  const call = translationCall({ model: 'm', messages: [{ role: 'user', content: 'hi' }] }, { stream: true });
  const outbound = translation.encode({ ...call, operation: 'messages' }, upstreamAt('https://api.openai.com/v1'));
  expect(outbound.path).toBe('/v1/chat/completions');
  expect(JSON.parse(Buffer.from(outbound.body as Uint8Array).toString())).toEqual({
    model: 'm',
    messages: [{ role: 'user', content: 'hi' }],
    stream: true,
    stream_options: { include_usage: true },
  });
});
