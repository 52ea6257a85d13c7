import fc from 'fast-check';
import { expect, test } from 'vitest';
import { jsonValues } from '#test/json-values.ts';
import { translationCall } from '#test/translation-call.ts';
import { encodeClaudeBody } from '../anthropic/encode.ts';
import { decodeClaudeMessage } from '../anthropic/decode.ts';
import { messagesDialect } from './index.ts';

// What the dialect reads and what the adapter of Anthropic writes have to be the same, so nothing is lost in between. The
// requests are the ones that both write alike: content as lists, results first.

const word = fc.stringMatching(/^[a-zA-Z0-9äß{}":. ]{0,20}[a-z]$/);
const cached = fc.option(fc.constant({ cache_control: { type: 'ephemeral' } }), { nil: {} });
const withMark = (block: fc.Arbitrary<object>): fc.Arbitrary<object> =>
  fc.tuple(block, cached).map(([given, mark]) => ({ ...given, ...mark }));
const base64 = fc.uint8Array({ minLength: 1, maxLength: 30 }).map((bytes) => Buffer.from(bytes).toString('base64'));

const text = withMark(word.map((said) => ({ type: 'text', text: said })));
const url = word.map((path) => `https://files.example/${encodeURIComponent(path)}`);
const imageSource = fc.oneof(
  fc
    .record({ media_type: fc.constantFrom('image/png', 'image/jpeg', 'image/webp'), data: base64 })
    .map((source) => ({ type: 'base64', ...source })),
  url.map((address) => ({ type: 'url', url: address })),
);
const image = withMark(imageSource.map((source) => ({ type: 'image', source })));
const documentSource = fc.oneof(
  base64.map((data) => ({ type: 'base64', media_type: 'application/pdf', data })),
  word.map((data) => ({ type: 'text', media_type: 'text/plain', data })),
  url.map((address) => ({ type: 'url', url: address })),
);
const document = withMark(
  fc
    .tuple(documentSource, fc.option(word, { nil: undefined }))
    .map(([source, title]) => ({ type: 'document', source, ...(title === undefined ? {} : { title }) })),
);
const input = fc.dictionary(fc.stringMatching(/^[a-z]{1,8}$/), jsonValues({ maxDepth: 2 }), { maxKeys: 3 });
const signature = fc.stringMatching(/^[A-Za-z0-9+/]{4,40}$/);
const thought = fc.oneof(
  fc.record({ type: fc.constant('thinking'), thinking: word, signature }),
  fc.record({ type: fc.constant('redacted_thinking'), data: signature }),
);

/** A question, then turns in which every call gets its result, and a last question. */
const conversation = fc
  .array(
    fc.record({
      said: fc.array(fc.oneof(text, thought), { minLength: 1, maxLength: 3 }),
      inputs: fc.array(input, { maxLength: 3 }),
      results: fc.array(fc.tuple(fc.array(fc.oneof(text, image), { maxLength: 2 }), fc.boolean()), {
        minLength: 3,
        maxLength: 3,
      }),
      asked: fc.array(fc.oneof(text, image, document), { minLength: 1, maxLength: 3 }),
    }),
    { maxLength: 4 },
  )
  .map((rounds) => [
    { role: 'user', content: [{ type: 'text', text: 'Begin.' }] },
    ...rounds.flatMap(({ said, inputs, results, asked }, round) => {
      const idOf = (position: number): string => `toolu_${round}_${position}`;
      const calls = inputs.map((given, position) => ({
        type: 'tool_use',
        id: idOf(position),
        name: `tool_${position}`,
        input: given,
      }));
      const answered = calls.map(({ id }, position) => {
        const [content, isError] = results[position] ?? [[], false];
        return {
          type: 'tool_result',
          tool_use_id: id,
          ...(content.length > 0 ? { content } : {}),
          ...(isError ? { is_error: true } : {}),
        };
      });
      return [
        { role: 'assistant', content: [...said, ...calls] },
        { role: 'user', content: [...answered, ...asked] },
      ];
    }),
  ]);

const tool = withMark(
  fc.tuple(word, word).map(([name, description]) => ({
    name,
    description,
    input_schema: { type: 'object', properties: { a: { type: 'string' } } },
  })),
);
const choice = fc.oneof(
  fc.record({ type: fc.constantFrom('auto', 'any') }),
  fc.record({ type: fc.constant('tool'), name: word }),
  fc.record({ type: fc.constantFrom('auto', 'any'), disable_parallel_tool_use: fc.constant(true) }),
  fc.constant({ type: 'none' }),
);

const request = fc
  .record(
    {
      messages: conversation,
      max_tokens: fc.integer({ min: 2_000, max: 64_000 }),
      system: fc.array(text, { minLength: 1, maxLength: 3 }),
      tools: fc.array(tool, { minLength: 1, maxLength: 3 }),
      tool_choice: choice,
      stop_sequences: fc.array(word, { minLength: 1, maxLength: 3 }),
      metadata: fc.record({ user_id: word }),
      thinking: fc.constantFrom({ type: 'enabled', budget_tokens: 1_024 }, { type: 'disabled' }),
      output_config: fc.record({ format: fc.constant({ type: 'json_schema', schema: { type: 'object' } }) }),
    },
    { requiredKeys: ['messages', 'max_tokens'] },
  )
  .map(({ tool_choice: chosen, ...rest }) => (rest.tools && chosen ? { ...rest, tool_choice: chosen } : rest));

test('a request that is read and written again is the same', () => {
  fc.assert(
    fc.property(request, (body) => {
      const call = translationCall(
        { model: 'claude-sonnet-4-5', ...body },
        { operation: 'messages', dialect: messagesDialect, strict: false },
      );
      const { body: written, dropped } = encodeClaudeBody(call);
      expect(written).toEqual(body);
      expect(dropped).toEqual([]);
    }),
    { numRuns: 300 },
  );
});

test('an answer that is read and written again is the same', () => {
  const called = fc
    .tuple(input, fc.uuid())
    .map(([given, id]) => ({ type: 'tool_use', id: `toolu_${id}`, name: 'f', input: given }));
  const said = word.map((shown) => ({ type: 'text', text: shown }));
  fc.assert(
    fc.property(fc.array(fc.oneof(said, thought)), fc.array(called), (blocks, calls) => {
      const message = {
        id: 'msg_1',
        type: 'message',
        role: 'assistant',
        model: 'claude-sonnet-4-5',
        content: [...blocks, ...calls],
        stop_reason: calls.length > 0 ? 'tool_use' : 'end_turn',
        stop_sequence: null,
        stop_details: null,
        usage: {
          input_tokens: 3,
          cache_creation_input_tokens: 4,
          cache_read_input_tokens: 5,
          output_tokens: 6,
        },
      };
      const call = translationCall({ model: 'm' }, { operation: 'messages', dialect: messagesDialect });
      expect(JSON.parse(JSON.stringify(decodeClaudeMessage(message, call)))).toEqual(message);
    }),
  );
});
