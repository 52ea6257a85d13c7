import type { ConformanceCase } from '../conformance-case.ts';
import { nearCase, nearStream } from '../near-case.ts';
import { chunk, completion, tools } from '../openai-payloads.ts';

const exhausted = 'The provider ended its answer with "insufficient_system_resource".';

export const cases: readonly ConformanceCase[] = [
  nearCase({
    provider: 'deepseek',
    model: 'deepseek-reasoner',
    answers: [
      {
        name: 'full tool call',
        request: { tools },
        whole: { fixture: 'deepseek-tool-call.json' },
        says: {
          text: null,
          toolCalls: [{ id: 'call_00_6R4wlg21Ev4xxpCLBTNxcEPb', name: 'weather', arguments: { location: 'Lisbon' } }],
          finishReason: 'tool_calls',
          usage: { prompt: 339, completion: 92, cached: 320, reasoning: 48 },
        },
      },
      {
        name: 'full tool call stream',
        request: { tools },
        stream: { fixture: 'deepseek-tool-call.chunks.txt' },
        says: {
          text: null,
          toolCalls: [{ id: 'call_00_yvUv8nB7u8COXPmDQiq4PxLR', name: 'weather', arguments: { location: 'Lisbon' } }],
          finishReason: 'tool_calls',
          usage: { prompt: 339, completion: 83, cached: 320, reasoning: 39 },
        },
      },
    ],
    streamErrors: [
      {
        name: 'out of machines',
        before: [chunk({ role: 'assistant', content: 'Hel' })],
        error: nearStream('insufficient_system_resource').lines.at(-1),
        reported: { code: 'upstream_error', message: exhausted },
      },
    ],
    brokenAnswers: [
      {
        name: 'out of machines',
        whole: completion({ content: 'Hel' }, 'insufficient_system_resource'),
        code: 'upstream_error',
      },
    ],
    encodings: [
      {
        name: 'a limit by its older name',
        request: { max_completion_tokens: 7 },
        body: { max_tokens: 7, max_completion_tokens: undefined },
      },
    ],
  }),
];
