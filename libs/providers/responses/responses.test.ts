import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { jsonValues } from '#test/json-values.ts';
import { bytesOf, decodeAll, translationCall, upstreamAt } from '#test/translation-call.ts';
import { findTranslation } from '../dialects.ts';
import type { Call, OutboundRequest } from '../provider.ts';
import { findProvider } from '../registry.ts';
import type { Json } from '../turns/json-value.ts';
import { decodeResponseRequest } from './decode-request.ts';
import { encodeResponse } from './encode-answer.ts';
import { responsesDialect } from './index.ts';
import { splitResponse } from './split-response.ts';
import { flatName, unwrapInput, wrapInput } from './tool-names.ts';
import { ResponseWriter } from './write-events.ts';

const callOf = (body: object, more: Partial<Call> = {}): Call =>
  translationCall(body, { operation: 'responses', dialect: responsesDialect, strict: false, ...more });

function send(provider: string, body: object): { sent: Json; dropped: readonly string[] } {
  const found = findProvider(provider);
  const translation = found && findTranslation(found, 'responses', 'm');
  if (!translation) throw new Error(`${provider} cannot answer`);
  const outbound: OutboundRequest = translation.encode(callOf({ model: 'm', ...body }), upstreamAt('http://host/v1'));
  return { sent: JSON.parse(bytesOf(outbound).toString()) as Json, dropped: outbound.dropped ?? [] };
}

describe('a request', () => {
  test('becomes a conversation of chat completions', () => {
    const { sent, dropped } = send('deepseek', {
      instructions: 'Be brief.',
      input: [
        { role: 'developer', content: 'Use tools.' },
        { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Weather?' }] },
        { type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: 'sluice.claude.c2ln' },
        { type: 'function_call', call_id: 'c1', name: 'look', namespace: 'crm', arguments: '{"a":1}' },
        { type: 'custom_tool_call', call_id: 'c2', name: 'patch', input: '*** Begin' },
        { type: 'function_call_output', call_id: 'c1', output: 'Snow' },
        { type: 'custom_tool_call_output', call_id: 'c2', output: [{ type: 'input_text', text: 'done' }] },
        { type: 'web_search_call', id: 'ws_1', status: 'completed' },
      ],
      tools: [
        { type: 'namespace', name: 'crm', tools: [{ type: 'function', name: 'look', parameters: { type: 'object' } }] },
        { type: 'custom', name: 'patch', format: { type: 'grammar', syntax: 'lark', definition: 'start: "x"' } },
      ],
      tool_choice: { type: 'custom', name: 'patch' },
      reasoning: { effort: 'low', summary: 'auto' },
      include: ['reasoning.encrypted_content'],
      max_output_tokens: 9,
      prompt_cache_key: 'k',
      store: false,
    });
    expect(sent).toMatchObject({
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'system', content: 'Use tools.' },
        { role: 'user', content: 'Weather?' },
        {
          role: 'assistant',
          content: null,
          tool_calls: [
            { id: 'c1', function: { name: 'crm__look', arguments: '{"a":1}' } },
            { id: 'c2', function: { name: 'patch', arguments: '{"input":"*** Begin"}' } },
          ],
        },
        { role: 'tool', tool_call_id: 'c1', content: 'Snow' },
        { role: 'tool', tool_call_id: 'c2', content: 'done' },
      ],
      tools: [
        { function: { name: 'crm__look' } },
        { function: { name: 'patch', description: expect.stringContaining('start: "x"') } },
      ],
      tool_choice: { type: 'function', function: { name: 'patch' } },
      reasoning_effort: 'low',
      max_tokens: 9,
    });
    expect(dropped).toEqual(expect.arrayContaining(['input[7]', 'prompt_cache_key', 'reasoning']));
    expect(dropped).toHaveLength(3);
  });

  test('only the allowed tools are offered', () => {
    const tools = ['a', 'b'].map((name) => ({ type: 'function', name }));
    const choice = { type: 'allowed_tools', mode: 'required', tools: [{ type: 'function', name: 'b' }] };
    expect(decodeResponseRequest({ input: 'Hi', tools, tool_choice: choice }, 'm')).toMatchObject({
      tools: [{ name: 'b' }],
      toolChoice: 'required',
    });
  });

  test('that offers web search, as Codex always does, gets on without it, and the client hears of it', () => {
    const tools = [{ type: 'function', name: 'f' }, { type: 'web_search' }];
    const { sent, dropped } = send('deepseek', { input: 'Hi', tools });
    expect(sent['tools']).toMatchObject([{ type: 'function', function: { name: 'f' } }]);
    expect(dropped).toEqual(['tools[1]']);
  });

  test('that refers to reasoning instead of sending it gets on without it, and the client hears of it', () => {
    const { sent, dropped } = send('deepseek', {
      input: [
        { role: 'user', content: 'Hi' },
        { type: 'item_reference', id: 'rs_1' },
      ],
    });
    expect(sent['messages']).toEqual([{ role: 'user', content: 'Hi' }]);
    expect(dropped).toEqual(['input[1]']);
  });

  test.each<[object, string]>([
    [{ input: [{ type: 'item_reference', id: 'msg_1' }] }, 'input[0]'],
    [{ input: [{ type: 'computer_call', id: 'x' }] }, 'input[0].type'],
    [
      { input: [{ role: 'user', content: [{ type: 'input_image', file_id: 'file-1' }] }] },
      'input[0].content[0].file_id',
    ],
    [{ tools: [{ type: 'mcp', server_label: 'x' }] }, 'tools[0].type'],
    [{ tool_choice: { type: 'file_search' } }, 'tool_choice'],
    [{ input: [{ type: 'function_call', call_id: 'c', name: 'f', arguments: '[1]' }] }, 'input[0].arguments'],
    [{ input: [{ role: 'critic', content: 'x' }] }, 'input[0].role'],
    [
      {
        tools: [
          { type: 'function', name: 'a__b' },
          { type: 'namespace', name: 'a', tools: [{ type: 'function', name: 'b' }] },
        ],
      },
      'tools[1].tools[0]',
    ],
  ])('%j is refused, naming %s', (body, param) => {
    expect(() => decodeResponseRequest({ input: 'Hi', ...body }, 'm')).toThrow(
      expect.objectContaining({ kind: 'invalid_request', param }),
    );
  });

  const text = fc.string({ minLength: 1 });
  const arguments_ = fc.dictionary(fc.stringMatching(/^[a-z]{1,8}$/), jsonValues(), { maxKeys: 3 });
  const turn = fc.oneof(
    fc.record({ said: text }),
    fc.record({ answered: text }),
    fc.record({ called: fc.array(fc.tuple(arguments_, text), { minLength: 1, maxLength: 3 }) }),
  );

  test.each(['deepseek', 'anthropic'])('a conversation keeps its texts, calls and results at %s', (provider) => {
    fc.assert(
      fc.property(fc.array(turn, { minLength: 1, maxLength: 8 }), (turns) => {
        const wanted: string[] = ['start'];
        const input: object[] = [{ role: 'user', content: 'start' }];
        // Consecutive messages of the model are one turn.
        const apart = turns.filter((one, at) => !('answered' in one && 'answered' in (turns[at - 1] ?? {})));
        for (const [index, one] of apart.entries()) {
          if ('said' in one) input.push({ role: 'user', content: [{ type: 'input_text', text: one.said }] });
          else if ('answered' in one) {
            input.push({ type: 'message', role: 'assistant', content: [{ type: 'output_text', text: one.answered }] });
          } else {
            const ids = one.called.map((_, at) => `call_${index}_${at}`);
            for (const [at, [given]] of one.called.entries()) {
              input.push({ type: 'function_call', call_id: ids[at], name: 'f', arguments: JSON.stringify(given) });
              wanted.push(`${ids[at]} ${JSON.stringify(given)}`);
            }
            for (const [at, [, result]] of one.called.entries()) {
              input.push({ type: 'function_call_output', call_id: ids[at], output: result });
              wanted.push(`${ids[at]} ${result}`);
            }
            continue;
          }
          const said = 'said' in one ? one.said : one.answered;
          // Claude refuses blank text, so the adapter leaves it out.
          if (provider !== 'anthropic' || 'said' in one || said.trim() !== '') wanted.push(said);
        }
        const { sent } = send(provider, { input, max_output_tokens: 9 });
        expect(spoken(sent).toSorted()).toEqual(wanted.toSorted());
      }),
    );
  });

  /** Every text, call and result of a request in either wire format. */
  function spoken({ messages }: Json): string[] {
    return (messages as Record<string, unknown>[]).flatMap((message) => {
      if (message['role'] === 'tool') return [`${String(message['tool_call_id'])} ${String(message['content'])}`];
      const { content } = message;
      const parts = Array.isArray(content) ? (content as Record<string, unknown>[]) : [{ type: 'text', text: content }];
      const calls = (message['tool_calls'] ?? []) as { id: string; function: { arguments: string } }[];
      return [
        ...parts.flatMap((part) => {
          if (part['type'] === 'tool_use') return [`${String(part['id'])} ${JSON.stringify(part['input'])}`];
          if (part['type'] === 'tool_result') {
            const inner = (part['content'] ?? [{ text: '' }]) as { text: string }[];
            return [`${String(part['tool_use_id'])} ${inner.map((each) => each.text).join('')}`];
          }
          return typeof part['text'] === 'string' && part['text'] !== '' ? [part['text']] : [];
        }),
        ...calls.map(({ id, function: { arguments: given } }) => `${id} ${given}`),
      ];
    });
  }
});

describe('an answer', () => {
  const body = {
    model: 'm',
    input: 'Hi',
    tools: [
      { type: 'custom', name: 'patch' },
      { type: 'namespace', name: 'mcp__crm__', tools: [{ type: 'function', name: 'look' }] },
    ],
  };
  const head = { id: 'x', model: 'm-1', created: 5, signer: 'claude' };
  const usage = { promptTokens: 5, completionTokens: 7, cachedTokens: 2, reasoningTokens: 3 };
  const events = (payloads: readonly string[]): Json[] => payloads.map((payload) => JSON.parse(payload) as Json);
  const withoutIds = (value: unknown): unknown =>
    JSON.parse(JSON.stringify(value, (name, inner: unknown) => (name === 'id' ? undefined : inner)));

  function stream(): Json[] {
    const writer = new ResponseWriter(head, callOf(body));
    return events([
      ...writer.thought({ thinking: 'Let me ' }, 0),
      ...writer.thought({ thinking: 'see.' }, 0),
      ...writer.thought({ signature: 'c2ln' }, 0),
      ...writer.thought({ data: 'cmVk' }, 1),
      ...writer.text('Hel', 2),
      ...writer.text('lo', 2),
      ...writer.toolCall(0, { id: 'c1', name: 'patch' }),
      ...writer.toolCall(1, { id: 'c2', name: 'mcp__crm__look' }),
      ...writer.toolArguments(0, '{"inp'),
      ...writer.toolArguments(1, '{"a":'),
      ...writer.toolArguments(0, 'ut":"x"}'),
      ...writer.toolArguments(1, '1}'),
      ...writer.finish('tool_calls'),
      ...writer.usage(usage),
      ...writer.end(),
    ]);
  }

  const whole = encodeResponse(
    head,
    [
      {
        blocks: [
          { type: 'thinking', thinking: 'Let me see.', signature: 'c2ln' },
          { type: 'redacted_thinking', data: 'cmVk' },
          { type: 'text', text: 'Hello' },
        ],
        toolCalls: [
          { id: 'c1', name: 'patch', arguments: '{"input":"x"}' },
          { id: 'c2', name: 'mcp__crm__look', arguments: '{"a":1}' },
        ],
        finishReason: 'tool_calls',
      },
    ],
    usage,
    callOf(body),
  );

  test('has its parts as items, under the names that the client knows', () => {
    expect(whole).toMatchObject({
      id: expect.stringMatching(/^resp_/),
      created_at: 5,
      model: 'm-1',
      status: 'completed',
      store: false,
      output: [
        { type: 'reasoning', summary: [{ text: 'Let me see.' }], encrypted_content: 'sluice.claude.c2ln' },
        { type: 'reasoning', summary: [], encrypted_content: 'sluice.claude.redacted.cmVk' },
        { type: 'message', content: [{ type: 'output_text', text: 'Hello' }] },
        { type: 'custom_tool_call', call_id: 'c1', name: 'patch', input: 'x' },
        { type: 'function_call', call_id: 'c2', name: 'look', namespace: 'mcp__crm__', arguments: '{"a":1}' },
      ],
      usage: { input_tokens: 5, output_tokens: 7, total_tokens: 12, input_tokens_details: { cached_tokens: 2 } },
    });
  });

  test('ends a stream with the same response, whose events are numbered and name items that were added', () => {
    const all = stream();
    expect(withoutIds(all.at(-1)?.['response'])).toEqual(withoutIds(whole));
    expect(all.map((event) => event['sequence_number'])).toEqual(all.map((_, index) => index));
    const added = all
      .filter(({ type }) => type === 'response.output_item.added')
      .map(({ item }) => (item as Json)['id']);
    const done = all.filter(({ type }) => type === 'response.output_item.done');
    expect(done.map(({ output_index }) => output_index)).toEqual([0, 1, 2, 3, 4]);
    expect(done.map(({ item }) => (item as Json)['id'])).toEqual(added);
  });

  test('its reasoning comes back as the blocks that it was', () => {
    const { messages } = decodeResponseRequest({ input: whole['output'] }, 'm');
    expect(messages).toMatchObject([
      {
        role: 'assistant',
        blocks: [
          { type: 'thinking', thinking: 'Let me see.', signature: 'c2ln', signer: 'claude' },
          { type: 'redacted_thinking', data: 'cmVk', signer: 'claude' },
          { type: 'text', text: 'Hello' },
        ],
        toolCalls: [{ name: 'patch' }, { name: 'mcp__crm__look' }],
      },
    ]);
  });

  test('a whole response splits into events that have all of it', () => {
    const split = events(splitResponse(whole));
    expect(split.at(-1)).toMatchObject({ type: 'response.completed', response: whole });
    expect(split.filter(({ type }) => type === 'response.output_item.done').map(({ item }) => item)).toEqual(
      whole['output'],
    );
    expect(split.map(({ type }) => type)).toEqual(
      expect.arrayContaining([
        'response.reasoning_summary_text.delta',
        'response.output_text.delta',
        'response.custom_tool_call_input.delta',
        'response.function_call_arguments.delta',
      ]),
    );
  });

  test('that has not finished does not end', () => {
    const writer = new ResponseWriter(head, callOf(body));
    writer.text('Hel', 0);
    expect(writer.end()).toEqual([]);
  });

  test('that is too large for its last event is refused, and what it retains is charged', () => {
    let charged = 0;
    const writer = new ResponseWriter(head, callOf(body, { retain: (bytes) => (charged += bytes) }));
    const piece = 'x'.repeat(1_000_000);
    const write = (): void => void writer.text(piece, 0);
    for (let count = 0; count < 8; count += 1) write();
    expect(charged).toBeGreaterThan(16_000_000);
    expect(charged).toBeLessThan(16_001_000);
    expect(write).toThrow(expect.objectContaining({ code: 'upstream_response_too_large' }));
  });

  test('with calls without end is refused, although each of them is empty', () => {
    const writer = new ResponseWriter(head, callOf(body));
    const callAll = (): void => {
      for (let key = 0; key < 50_000; key += 1) writer.toolCall(key, { id: '', name: '' });
    };
    expect(callAll).toThrow(expect.objectContaining({ code: 'upstream_response_too_large' }));
  });

  test('long instructions and tools are not repeated', () => {
    const long = callOf({ ...body, instructions: 'x'.repeat(20_000) });
    expect(encodeResponse(head, [], null, long)).toMatchObject({ instructions: null, tools: [] });
    const short = callOf({ ...body, instructions: 'x' });
    expect(encodeResponse(head, [], null, short)).toMatchObject({ instructions: 'x', tools: body.tools });
  });
});

describe('the events of a provider that has the API', () => {
  const openai = findProvider('openai')?.operations.responses;
  const read = (...list: object[]) => {
    const decoder = openai?.openStream?.(callOf({ input: 'Hi' }));
    if (!decoder) throw new Error('openai has no stream');
    return decodeAll(
      decoder,
      list.map((event) => ({ data: JSON.stringify(event) })),
    );
  };

  test('pass unchanged until the last one', () => {
    const list = [{ type: 'response.created' }, { type: 'response.new' }, { type: 'response.incomplete' }];
    expect(read(...list)).toMatchObject({ chunks: list, done: true, error: null });
  });

  test('are an error with the status of its code', () => {
    const failed = { type: 'response.failed', response: { error: { code: 'rate_limit_exceeded', message: 'Wait' } } };
    expect(read(failed)).toMatchObject({
      error: { status: 429, error: { message: 'Wait', code: 'rate_limit_exceeded' } },
    });
  });
});

test('the name of a tool in a namespace is valid everywhere, and different for different tools', () => {
  expect(flatName('crm', 'look')).toBe('crm__look');
  expect(flatName('mcp__crm__', 'look')).toBe('mcp__crm__look');
  const long = ['a', 'b'].map((end) => flatName('n'.repeat(50), `${'t'.repeat(30)}${end}`));
  expect(new Set(long).size).toBe(2);
  expect(long.every((name) => name.length <= 64)).toBe(true);
});

test('the input of a custom tool survives being arguments; other arguments are its input as they are', () => {
  fc.assert(fc.property(fc.string(), (input) => unwrapInput(wrapInput(input)) === input));
  expect(unwrapInput('{"other":1}')).toBe('{"other":1}');
  expect(unwrapInput('not JSON')).toBe('not JSON');
});

test.each([4_294_967_294, 1e300, -1, 'x', 1])('a stream whose first item has the place %s is not joined', (index) => {
  const joiner = responsesDialect.openJoiner();
  const item = { id: 'msg_1', type: 'message', role: 'assistant', content: [] };
  joiner.read(JSON.stringify({ type: 'response.output_item.added', output_index: index, item }));
  expect([joiner.shown, joiner.startNext()]).toEqual(['other', []]);
  const whole = joiner.rewrite(JSON.stringify({ type: 'response.completed', response: { output: [item] } }));
  expect(JSON.parse(whole ?? '')).toMatchObject({ response: { output: [item] } });
});
