import type { ConformanceCase } from '../conformance-case.ts';
import { nearCase } from '../near-case.ts';
import { chunk, completion, counts, tools, usage } from '../openai-payloads.ts';

export const cases: readonly ConformanceCase[] = [
  nearCase({
    provider: 'groq',
    model: 'llama-3.3-70b-versatile',
    folder: '/openai/v1',
    answers: [
      {
        name: 'usage in a place of its own',
        whole: completion({ content: 'Hi' }, 'stop'),
        stream: {
          lines: [
            { ...chunk({ role: 'assistant', content: '' }), x_groq: { id: 'req_1' } },
            chunk({ content: 'Hi' }),
            { ...chunk({}, 'stop'), x_groq: { id: 'req_1', usage } },
          ],
        },
        says: { text: 'Hi', finishReason: 'stop', usage: counts },
      },
      {
        name: 'full tool call',
        request: { tools },
        whole: { fixture: 'groq-tool-call.json' },
        says: {
          text: null,
          toolCalls: [{ id: 'zf4zwlape', name: 'weather', arguments: {} }],
          finishReason: 'tool_calls',
          usage: { prompt: 218, completion: 15 },
        },
      },
      {
        name: 'full tool call stream',
        request: { tools },
        stream: { fixture: 'groq-tool-call.chunks.txt' },
        says: {
          text: null,
          toolCalls: [{ id: 'pe40o2w9w', name: 'weather', arguments: {} }],
          finishReason: 'tool_calls',
          usage: { prompt: 210, completion: 15 },
        },
      },
    ],
  }),
];
