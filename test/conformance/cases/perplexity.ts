import type { ConformanceCase } from '../conformance-case.ts';
import { nearCase } from '../near-case.ts';
import { chunk, completion, counts, usage } from '../openai-payloads.ts';

export const cases: readonly ConformanceCase[] = [
  nearCase({
    provider: 'perplexity',
    model: 'sonar',
    answers: [
      {
        name: 'usage in every chunk',
        whole: completion({ content: 'Hi there' }, 'stop'),
        stream: {
          lines: [
            {
              ...chunk({ role: 'assistant', content: '' }),
              usage: { ...usage, completion_tokens: 0, total_tokens: 20 },
            },
            { ...chunk({ content: 'Hi there' }), usage: { ...usage, completion_tokens: 5, total_tokens: 25 } },
            { ...chunk({ content: '' }, 'stop'), usage },
          ],
        },
        says: { text: 'Hi there', finishReason: 'stop', usage: counts },
      },
    ],
    encodings: [{ name: 'usage is not asked for', request: {}, stream: true, body: { stream: true } }],
  }),
];
