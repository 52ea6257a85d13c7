import { canary } from '#test/forwarding-rig.ts';
import type { ConformanceCase } from './conformance-case.ts';
import { chunk, completion, counts, head, parallel, tools, usage } from './openai-payloads.ts';
import { sseWire } from './wires.ts';

/** A stream as most of OpenAI's kin write it: usage beside the finish reason, and no chunk for it alone. */
export const nearStream = (finish: string, ...deltas: object[]) => ({
  lines: [
    chunk({ role: 'assistant', content: '' }),
    ...deltas.map((delta) => chunk(delta)),
    { ...(chunk({}, finish) as object), usage },
  ],
});

const nearParallel = nearStream(
  'tool_calls',
  { tool_calls: [{ index: 0, ...parallel[0], function: { name: 'weather', arguments: '' } }] },
  { tool_calls: [{ index: 0, function: { arguments: '{"city":"Köln"}' } }] },
  { tool_calls: [{ index: 1, ...parallel[1] }] },
);

type Given = Partial<ConformanceCase> & Pick<ConformanceCase, 'provider' | 'model'>;

/** What every near dialect must do; a case adds what is its own. */
export function nearCase(given: Given): ConformanceCase {
  const { answers = [], conversations = [], earlyErrors = [], streamErrors = [], encodings = [], ...rest } = given;
  return {
    folder: '/v1',
    wire: sseWire({ done: true }),
    answers: [
      {
        name: 'text beyond ASCII',
        whole: completion({ content: 'Schöne Grüße 😀' }, 'stop'),
        stream: nearStream('stop', { content: 'Schöne ' }, { content: 'Grüße 😀' }),
        says: { text: 'Schöne Grüße 😀', finishReason: 'stop', usage: counts },
      },
      {
        name: 'parallel tool calls, without content',
        request: { tools },
        whole: {
          body: {
            ...head,
            object: 'chat.completion',
            choices: [{ index: 0, message: { role: 'assistant', tool_calls: parallel }, finish_reason: 'tool_calls' }],
            usage,
          },
        },
        stream: nearParallel,
        says: {
          text: null,
          toolCalls: [
            { id: 'call_1', name: 'weather', arguments: { city: 'Köln' } },
            { id: 'call_2', name: 'time', arguments: {} },
          ],
          finishReason: 'tool_calls',
          usage: counts,
        },
      },
      ...answers,
    ],
    conversations:
      conversations.length > 0
        ? conversations
        : [
            {
              name: 'parallel calls',
              request: { messages: [{ role: 'user', content: 'Weather and time?' }], tools },
              first: { whole: completion({ tool_calls: parallel }, 'tool_calls'), stream: nearParallel },
              results: { weather: 'rain', time: '12:00' },
              second: {
                whole: completion({ content: 'Rain at noon.' }, 'stop'),
                stream: nearStream('stop', { content: 'Rain at noon.' }),
              },
              finalText: 'Rain at noon.',
              secondRequest: () => ({
                messages: [
                  { role: 'user' },
                  { role: 'assistant', tool_calls: parallel },
                  { role: 'tool', tool_call_id: 'call_1', content: 'rain' },
                  { role: 'tool', tool_call_id: 'call_2', content: '12:00' },
                ],
              }),
            },
          ],
    earlyErrors: [
      {
        name: 'too many requests, flat, with a key in its text',
        status: 429,
        headers: { 'retry-after': '2' },
        body: { message: `Slow down, ${canary}`, type: 'requests' },
        reported: { status: 429, code: null, message: 'Slow down, [redacted]', type: 'requests', retryAfterMs: 2_000 },
      },
      ...earlyErrors,
    ],
    streamErrors: [
      {
        name: 'sent as an object',
        before: [chunk({ role: 'assistant', content: 'Hel' })],
        error: { error: { message: 'broken', type: 'server_error', param: null, code: 'server_error' } },
        reported: { code: 'server_error', message: 'broken' },
        firstStatus: 502,
      },
      ...streamErrors,
    ],
    encodings: [
      {
        name: 'a developer message is a system message there, and nothing else is touched',
        request: {
          messages: [
            { role: 'developer', content: 'Say "developer".' },
            { role: 'user', content: 'developer' },
          ],
          future_parameter: 1,
        },
        path: `${given.folder ?? '/v1'}/chat/completions`,
        headers: { authorization: `Bearer ${canary}` },
        body: {
          messages: [
            { role: 'system', content: 'Say "developer".' },
            { role: 'user', content: 'developer' },
          ],
          future_parameter: 1,
        },
      },
      ...encodings,
    ],
    ...rest,
  };
}
