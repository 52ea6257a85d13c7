import type { ConformanceCase } from '../conformance-case.ts';
import { nearCase } from '../near-case.ts';
import { chunk, completion, counts, head, usage } from '../openai-payloads.ts';
import { sseWire } from '../wires.ts';

const wire = sseWire({ done: true });
const failedChoice = {
  index: 0,
  delta: { content: '' },
  finish_reason: 'error',
  error: { code: 502, message: 'The model behind it is down' },
};

export const cases: readonly ConformanceCase[] = [
  nearCase({
    provider: 'openrouter',
    model: 'anthropic/claude-sonnet-4.5',
    folder: '/api/v1',
    // A sign of life before each event.
    wire: { ...wire, frame: (line) => Buffer.concat([Buffer.from(': OPENROUTER PROCESSING\n\n'), wire.frame(line)]) },
    answers: [
      {
        name: 'usage behind the end, beside an empty choice',
        whole: completion({ content: 'Hi' }, 'stop'),
        stream: {
          lines: [
            chunk({ role: 'assistant', content: 'Hi' }),
            chunk({ content: '' }, 'stop'),
            { ...chunk({ role: 'assistant', content: '' }), usage },
          ],
        },
        says: { text: 'Hi', finishReason: 'stop', usage: counts },
      },
    ],
    streamErrors: [
      {
        name: 'inside a choice',
        before: [chunk({ role: 'assistant', content: 'Hel' })],
        error: { ...head, object: 'chat.completion.chunk', choices: [failedChoice] },
        reported: { code: 'upstream_error', message: 'The model behind it is down' },
        firstStatus: 502,
      },
      {
        name: 'beside the choices',
        before: [chunk({ role: 'assistant', content: 'Hel' })],
        error: {
          ...head,
          object: 'chat.completion.chunk',
          error: { code: 429, message: 'Provider disconnected' },
          choices: [{ index: 0, delta: { content: '' }, finish_reason: 'error' }],
        },
        reported: { code: '429', message: 'Provider disconnected' },
        firstStatus: 429,
      },
    ],
    brokenAnswers: [
      {
        name: 'an error in a choice',
        whole: {
          body: {
            ...head,
            object: 'chat.completion',
            choices: [
              {
                index: 0,
                message: { role: 'assistant', content: '' },
                finish_reason: 'error',
                error: failedChoice.error,
              },
            ],
          },
        },
        code: 'upstream_error',
      },
    ],
  }),
];
