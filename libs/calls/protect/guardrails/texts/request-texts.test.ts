import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { guardrailForms } from '#test/guardrail-forms.ts';
import { inputTexts } from './request-texts.ts';

const word = 'Forbidden';
const operations = {
  '/chat/completions': 'chat',
  '/completions': 'completions',
  '/embeddings': 'embeddings',
  '/responses': 'responses',
  '/moderations': 'moderations',
  '/images/generations': 'images',
} as const;
const user = [{ role: 'user', content: 'hello' }];

test.each(guardrailForms(word))('$name is searched, or counts as unreadable', ({ route, body }) => {
  const { said, unreadable } = inputTexts(operations[route], { model: 'm', ...body });
  expect(unreadable !== null || said.join('\n').includes(word)).toBe(true);
});

test('a word in any string or member name at any place of a body is found, or the body counts as unreadable', () => {
  const name = fc.constantFrom<string>(
    'content',
    'text',
    'type',
    'input',
    'parts',
    'image_url',
    'properties',
    'variables',
    'tools',
    'a',
    'data',
  );
  const leaf = fc.constantFrom<unknown>('hello', 'text', 'message', 5, null, true);
  const { place } = fc.letrec<{ place: unknown }>((tie) => ({
    place: fc.oneof(
      { depthSize: 'medium' },
      fc.constantFrom<unknown>(word, { [word]: 1 }, { type: word }, { role: word }, [word]),
      fc.tuple(name, tie('place'), name, leaf).map(([at, inner, beside, other]) => ({ [beside]: other, [at]: inner })),
      fc.tuple(tie('place'), leaf).map(([inner, other]) => [other, inner]),
    ),
  }));
  fc.assert(
    fc.property(fc.constantFrom(...Object.values(operations)), name, place, (operation, member, value) => {
      const { said, unreadable } = inputTexts(operation, { messages: user, [member]: value });
      expect(unreadable !== null || said.join('\n').includes(word)).toBe(true);
    }),
    { numRuns: 1_000 },
  );
});

describe('an ordinary request', () => {
  const tool = { type: 'function', function: { name: 'f', parameters: { type: 'object', properties: {} } } };
  const options = {
    model: 'm',
    stream: true,
    stream_options: { include_usage: true },
    user: 'ada',
    metadata: { team: 'red' },
    stop: ['END'],
    logit_bias: { 50_256: -100 },
    service_tier: 'auto',
    reasoning_effort: 'low',
    tool_choice: 'auto',
    temperature: 0.5,
    max_tokens: 100,
    response_format: { type: 'json_object' },
    prediction: null,
  };

  test('contains only the words of its messages and tools', () => {
    const { said, measured, unreadable } = inputTexts('chat', { ...options, messages: user });
    expect({ said, measured, unreadable }).toEqual({ said: ['hello'], measured: ['hello'], unreadable: null });
    expect(inputTexts('chat', { ...options, messages: user, tools: [tool] }).said).toEqual(['hello\nf']);
  });

  test('of /v1/responses has the text of its input alone', () => {
    const input = [
      { type: 'message', role: 'user', status: 'completed', content: [{ type: 'input_text', text: 'hi' }] },
    ];
    const body = { ...options, reasoning: { effort: 'low', summary: 'auto' }, text: { format: { type: 'text' } } };
    expect(inputTexts('responses', { ...body, input })).toEqual({ said: ['hi'], measured: ['hi'], unreadable: null });
    expect(inputTexts('responses', { ...body, input: 'hi' }).said).toEqual(['hi']);
  });

  test('with several inputs has one text for each', () => {
    const body = { model: 'm', input: ['a', 'b'], encoding_format: 'base64' };
    expect(inputTexts('embeddings', body)).toEqual({ said: ['a', 'b'], measured: ['a', 'b'], unreadable: null });
    const suffixed = inputTexts('completions', { prompt: 'a', suffix: 'z' });
    expect(suffixed).toEqual({ said: ['a', 'z'], measured: ['a'], unreadable: null });
  });

  test('may define a tool with parameters that are named like media', () => {
    const parameters = { type: 'object', properties: { image: { type: 'string' }, file_id: { type: 'string' } } };
    const tools = [{ type: 'function', function: { name: 'f', parameters } }];
    expect(inputTexts('chat', { messages: user, tools }).unreadable).toBeNull();
  });
});

test('numbers in what the model reads are searched as their digits', () => {
  const body = { messages: user, documents: [{ card: 4_111_111_111_111_111 }] };
  expect(inputTexts('chat', body).said.join('\n')).toContain('4111111111111111');
});

describe('media', () => {
  const bytes = 'QUJD'.repeat(1_000);
  const image = { type: 'image_url', image_url: { url: `data:image/png;base64,${bytes}`, detail: 'high' } };
  const file = { type: 'file', file: { filename: 'notes.txt', file_data: bytes } };
  const body = { messages: [{ role: 'user', content: [{ type: 'text', text: 'look' }, image, file] }] };

  test('are named without a word of the caller, and token IDs are not media', () => {
    expect(inputTexts('chat', body).unreadable).toEqual({ what: 'image_url', isMedia: true });
    const holo = { input: [{ type: 'holo', x: 'y' }] };
    expect(inputTexts('responses', holo).unreadable).toEqual({ what: 'part of an unknown type', isMedia: true });
    expect(inputTexts('completions', { prompt: [1] }).unreadable?.isMedia).toBe(false);
  });

  test('leave out their bytes and keep their names and the texts around them', () => {
    expect(inputTexts('chat', body).said).toEqual(['look\nnotes.txt']);
  });

  test('do not hide bytes that are sent as text', () => {
    const text = `data:text/plain;base64,${bytes}`;
    const { said, unreadable } = inputTexts('chat', { messages: [{ role: 'user', content: text }] });
    expect([said, unreadable?.isMedia]).toEqual([[text], true]);
  });
});
