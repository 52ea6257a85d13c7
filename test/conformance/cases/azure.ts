import { canary } from '#test/forwarding-rig.ts';
import type { ConformanceCase } from '../conformance-case.ts';
import { nearCase } from '../near-case.ts';
import { chunk, completion, counts, parallel, parallelStream, stream, tools } from '../openai-payloads.ts';
import { openAi } from './openai.ts';

const developer = { messages: [{ role: 'developer', content: 'Be brief.' }] };
const { answers, conversations } = openAi;

const azureCase = (given: Partial<ConformanceCase>): ConformanceCase => ({
  ...nearCase({ provider: 'azure', model: 'gpt-4o' }),
  folder: '/openai',
  passThrough: true,
  answers: answers.filter(({ whole }) => whole && !('fixture' in whole)),
  conversations: [],
  encodings: [],
  ...given,
});

export const cases: readonly ConformanceCase[] = [
  azureCase({
    conversations: conversations.map((each) => ({
      ...each,
      secondRequest: () => ({ messages: [{}, { tool_calls: parallel }, {}, {}] }),
    })),
    earlyErrors: [
      {
        name: 'a prompt that the filter stops',
        status: 400,
        body: {
          error: {
            message: 'The response was filtered.',
            type: null,
            param: 'prompt',
            code: 'content_filter',
            status: 400,
            innererror: { code: 'ResponsibleAIPolicyViolation' },
          },
        },
        reported: { status: 400, code: 'content_filter', message: 'The response was filtered.', param: 'prompt' },
      },
      {
        name: 'too many requests, with the wait in milliseconds',
        status: 429,
        headers: { 'retry-after-ms': '1500', 'retry-after': '2' },
        body: { error: { code: '429', message: 'Requests have exceeded the call rate limit.' } },
        reported: {
          status: 429,
          code: '429',
          message: 'Requests have exceeded the call rate limit.',
          retryAfterMs: 1_500,
        },
      },
    ],
    encodings: [
      {
        name: 'the model is the deployment, and its body OpenAI’s',
        request: developer,
        path: '/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21',
        headers: { 'api-key': canary, authorization: undefined },
        body: { model: 'gpt-4o', ...developer },
      },
    ],
    embeddings: [
      {
        name: 'by deployment',
        request: { input: 'a' },
        sends: { input: 'a' },
        whole: {
          body: {
            object: 'list',
            data: [{ object: 'embedding', index: 0, embedding: [1, -0.5] }],
            model: 'e',
            usage: { prompt_tokens: 1, total_tokens: 1 },
          },
        },
        vectors: [[1, -0.5]],
        promptTokens: 1,
      },
    ],
    models: {
      whole: { body: { data: [{ id: 'gpt-4o', created_at: 1_700_000_000, status: 'succeeded' }], object: 'list' } },
      path: '/openai/models?api-version=2024-10-21',
      ids: ['gpt-4o'],
    },
  }),
  azureCase({
    variant: 'what the filter adds',
    // The first chunk, of the filter, has neither choices nor an id.
    deviations: ['head', 'usage'],
    answers: [
      {
        name: 'full through the model router',
        stream: { fixture: 'azure-model-router.1.chunks.txt' },
        says: {
          text: 'Capital of Norway.',
          finishReason: 'stop',
          usage: { prompt: 15, completion: 78, reasoning: 64 },
        },
      },
      {
        name: 'filter results of the prompt first',
        stream: {
          lines: [
            { id: '', object: '', created: 0, model: '', choices: [], prompt_filter_results: [{ prompt_index: 0 }] },
            ...stream('content_filter', { content: 'So' }).lines,
          ],
        },
        says: { text: 'So', finishReason: 'content_filter', usage: counts },
      },
    ],
  }),
  azureCase({
    variant: 'v1, a token, a deployment of its own',
    settings: { azure_api_version: 'v1', azure_deployment_id: 'my-deployment' },
    secrets: () => ({ azure_ad_token: 'eyJ.token.of-azure' }),
    answers: [
      {
        name: 'tools',
        request: { tools },
        whole: completion({ tool_calls: parallel }, 'tool_calls'),
        stream: parallelStream,
        says: answers.find(({ name }) => name === 'parallel tool calls')?.says ?? {
          text: null,
          finishReason: 'stop',
          usage: counts,
        },
      },
    ],
    streamErrors: [
      {
        name: 'sent as an object',
        before: [chunk({ role: 'assistant', content: 'Hel' })],
        error: { error: { message: 'no eyJ.token.of-azure', type: 'server_error', param: null, code: null } },
        reported: { code: null, message: 'no [redacted]' },
        firstStatus: 502,
      },
    ],
    encodings: [
      {
        name: 'the deployment is the model',
        request: developer,
        path: '/openai/v1/chat/completions',
        headers: { authorization: 'Bearer eyJ.token.of-azure', 'api-key': undefined },
        body: { model: 'my-deployment', ...developer },
      },
    ],
  }),
];
