import type { ConformanceCase } from '../conformance-case.ts';
import { nearCase, nearStream } from '../near-case.ts';
import { chunk, completion, counts, tools } from '../openai-payloads.ts';

const thoughts = (text: string) => ({ type: 'thinking', thinking: [{ type: 'text', text }] });
const bare = (id: string, name: string, input: string) => ({ id, function: { name, arguments: input } });
// The first nine characters of the digest of a foreign id.
const foreign = 'call_0123456789';

export const cases: readonly ConformanceCase[] = [
  nearCase({
    provider: 'mistral',
    model: 'mistral-small-latest',
    answers: [
      {
        name: 'tool calls without index and type',
        request: { tools },
        whole: completion(
          { tool_calls: [bare('abcdefgh1', 'weather', '{"city":"Ulm"}'), bare('abcdefgh2', 'time', '{}')] },
          'tool_calls',
        ),
        stream: nearStream(
          'tool_calls',
          { content: null, tool_calls: [bare('abcdefgh1', 'weather', '{"city":"Ulm"}')] },
          { content: null, tool_calls: [bare('abcdefgh2', 'time', '{}')] },
        ),
        says: {
          text: null,
          toolCalls: [
            { id: 'abcdefgh1', name: 'weather', arguments: { city: 'Ulm' } },
            { id: 'abcdefgh2', name: 'time', arguments: {} },
          ],
          finishReason: 'tool_calls',
          usage: counts,
        },
      },
      {
        name: 'thoughts as content',
        whole: completion({ content: [thoughts('Two and two.'), { type: 'text', text: '4' }] }, 'stop'),
        stream: nearStream(
          'stop',
          { content: [thoughts('Two ')] },
          { content: [thoughts('and two.')] },
          { content: '4' },
        ),
        says: {
          text: '4',
          finishReason: 'stop',
          usage: counts,
          contentBlocks: [{ type: 'thinking', thinking: 'Two and two.' }],
        },
      },
      {
        name: 'the end of the model’s own window',
        whole: completion({ content: 'So' }, 'model_length'),
        stream: nearStream('model_length', { content: 'So' }),
        says: { text: 'So', finishReason: 'length', usage: counts },
      },
      {
        name: 'full text',
        whole: { fixture: 'mistral-text.json' },
        says: {
          text: /^\*\*Checklist: "First hike/,
          finishReason: 'stop',
          usage: { prompt: 13, completion: 434 },
        },
      },
      {
        name: 'full text stream',
        stream: { fixture: 'mistral-text.chunks.txt' },
        says: {
          text: 'Hello, reader! This is a short answer.',
          finishReason: 'stop',
          usage: { prompt: 13, completion: 8 },
        },
      },
      ...(['whole', 'stream'] as const).map((how) => ({
        name: `full tool call, ${how}`,
        request: { tools },
        ...(how === 'whole'
          ? { whole: { fixture: 'mistral-tool-call.json' } }
          : { stream: { fixture: 'mistral-tool-call.chunks.txt' } }),
        says: {
          text: null,
          toolCalls: [{ id: 'wAIUMrJqO', name: 'weather', arguments: { location: 'Lisbon' } }],
          finishReason: 'tool_calls' as const,
          usage: { prompt: 124, completion: 22 },
        },
      })),
    ],
    conversations: [
      {
        name: 'ids of its own stay, those of another provider fit',
        request: {
          messages: [
            { role: 'user', content: 'Time?' },
            {
              role: 'assistant',
              content: null,
              tool_calls: [{ type: 'function', ...bare(foreign, 'time', '{"id":"x"}') }],
            },
            { role: 'tool', tool_call_id: foreign, content: '11:00' },
            { role: 'user', content: 'Weather?' },
          ],
          tools,
        },
        first: {
          whole: completion({ tool_calls: [bare('abcdefgh1', 'weather', '{}')] }, 'tool_calls'),
          stream: nearStream('tool_calls', { tool_calls: [bare('abcdefgh1', 'weather', '{}')] }),
        },
        results: { weather: 'rain' },
        second: { whole: completion({ content: 'Rain.' }, 'stop'), stream: nearStream('stop', { content: 'Rain.' }) },
        finalText: 'Rain.',
        secondRequest: () => ({
          messages: [
            { role: 'user' },
            { tool_calls: [{ id: 'ab14600fc', function: { arguments: '{"id":"x"}' } }] },
            { role: 'tool', tool_call_id: 'ab14600fc' },
            { role: 'user' },
            { role: 'assistant', tool_calls: [{ id: 'abcdefgh1' }] },
            { role: 'tool', tool_call_id: 'abcdefgh1', content: 'rain' },
          ],
        }),
      },
    ],
    streamErrors: [
      {
        name: 'an end called error',
        before: [chunk({ role: 'assistant', content: 'Hel' })],
        error: nearStream('error').lines.at(-1),
        reported: { code: 'upstream_error', message: 'The provider ended its answer with "error".' },
        firstStatus: 502,
      },
    ],
    brokenAnswers: [
      { name: 'an end called error', whole: completion({ content: 'Hel' }, 'error'), code: 'upstream_error' },
    ],
    encodings: [
      {
        name: 'names and words of its own',
        request: { seed: 9_007_199_254_740_991, max_completion_tokens: 5, tool_choice: 'required', tools },
        stream: true,
        body: {
          random_seed: 9_007_199_254_740_991,
          seed: undefined,
          max_tokens: 5,
          max_completion_tokens: undefined,
          tool_choice: 'any',
          stream: true,
          stream_options: undefined,
        },
      },
      {
        name: 'thoughts go back as content',
        request: {
          messages: [
            { role: 'user', content: '2 + 2?' },
            { role: 'assistant', content: '4', content_blocks: [{ type: 'thinking', thinking: 'Two and two.' }] },
          ],
        },
        body: {
          messages: [
            { role: 'user', content: '2 + 2?' },
            { role: 'assistant', content: [thoughts('Two and two.'), { type: 'text', text: '4' }] },
          ],
        },
      },
      {
        name: 'a tool by its name stays',
        request: { tools, tool_choice: { type: 'function', function: { name: 'time' } } },
        body: { tool_choice: { type: 'function', function: { name: 'time' } } },
      },
    ],
  }),
];
