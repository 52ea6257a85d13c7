import type { ConformanceCase } from '../conformance-case.ts';
import { nearCase, nearStream } from '../near-case.ts';
import { completion, counts } from '../openai-payloads.ts';

export const cases: readonly ConformanceCase[] = [
  nearCase({
    provider: 'together',
    model: 'meta-llama/Llama-3.3-70B-Instruct-Turbo',
    answers: [
      {
        name: 'an end called eos',
        whole: completion({ content: 'Hi' }, 'eos'),
        stream: nearStream('eos', { content: 'Hi' }),
        says: { text: 'Hi', finishReason: 'stop', usage: counts },
      },
    ],
    earlyErrors: [
      {
        name: 'an error that is a text',
        status: 422,
        body: { id: 'x', error: 'Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193.' },
        reported: {
          status: 422,
          code: null,
          message: 'Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193.',
          type: 'invalid_request_error',
        },
      },
    ],
  }),
];
