import { generateKeyPairSync } from 'node:crypto';
import { canary } from '#test/forwarding-rig.ts';
import type { ConformanceCase, Conversation, AnswerCase } from '../conformance-case.ts';
import { sseWire } from '../wires.ts';
import { cases as anthropicCases } from './anthropic.ts';
import { candidate, geminiAnswers } from './gemini.ts';
import { cases as openAiCases } from './openai.ts';

// Whose dialect a model speaks follows from its name; each must hold what its maker's own service holds.
const [claude] = anthropicCases;
const [openAi] = openAiCases;
if (!claude || !openAi) throw new Error('the cases of Anthropic and OpenAI are missing');

const location = '/v1/projects/project-1/locations/us-central1';
const settings = { vertex_project_id: 'project-1', vertex_region: 'us-central1' };
const privateKey = generateKeyPairSync('rsa', { modulusLength: 2_048 }).privateKey.export({
  type: 'pkcs8',
  format: 'pem',
});

const tools = ['weather', 'time'].map((name) => ({ type: 'function', function: { name } }));
const callPiece = (path: string, value: Record<string, unknown>) => ({
  functionCall: { partialArgs: [{ jsonPath: path, ...value }], willContinue: true },
});

// As cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling shows them: the first part names the function,
// and an empty one ends the call.
const callsInPieces: AnswerCase = {
  name: 'parallel tool calls whose arguments come in pieces',
  request: { tools, stream_function_call_arguments: true },
  stream: {
    lines: [
      candidate([{ functionCall: { name: 'weather', willContinue: true }, thoughtSignature: 'EskgCsYgAb4=' }]),
      candidate([callPiece('$.city', { stringValue: 'New ', willContinue: true })]),
      candidate([callPiece('$.city', { stringValue: 'Delhi' }), callPiece('$.days[0].hours', { numberValue: 24 })]),
      candidate([callPiece('$.days[1].hours', { numberValue: 6 }), callPiece('$.exact', { boolValue: true })]),
      candidate([{ functionCall: {} }]),
      candidate([{ functionCall: { name: 'time', willContinue: true } }]),
      candidate([{ functionCall: {} }]),
      candidate([{ text: '' }], 'STOP'),
    ],
  },
  says: {
    text: null,
    toolCalls: [
      { name: 'weather', arguments: { city: 'New Delhi', days: [{ hours: 24 }, { hours: 6 }], exact: true } },
      { name: 'time', arguments: {} },
    ],
    finishReason: 'tool_calls',
    usage: { prompt: 20, completion: 9, cached: 8, reasoning: 4 },
  },
};

export const cases: readonly ConformanceCase[] = [
  {
    provider: 'vertex',
    variant: 'Gemini, by a service account',
    model: 'gemini-3-test',
    folder: '/v1',
    settings: { vertex_region: 'us-central1' },
    secrets: (upstream) => ({
      vertex_service_account_json: JSON.stringify({
        type: 'service_account',
        project_id: 'project-1',
        private_key_id: 'key-1',
        private_key: privateKey,
        client_email: 'sluice@project-1.iam.gserviceaccount.com',
        token_uri: new URL('/token', upstream).href,
      }),
    }),
    apiKey: null,
    // The token is the canary, so that the suite sees it where it must not be.
    beside: ({ path }) => (path === '/token' ? { access_token: canary, expires_in: 3_599 } : undefined),
    wire: sseWire(),
    ...geminiAnswers,
    answers: [...geminiAnswers.answers, callsInPieces],
    encodings: [
      {
        name: 'a stream whose arguments come in pieces',
        request: { tools, tool_choice: 'auto', stream_function_call_arguments: true },
        stream: true,
        body: { toolConfig: { functionCallingConfig: { mode: 'AUTO', streamFunctionCallArguments: true } } },
      },
      {
        name: 'no pieces for a whole answer, which would be refused',
        request: { tools, streamFunctionCallArguments: true },
        body: { toolConfig: undefined, streamFunctionCallArguments: undefined },
      },
      {
        name: 'a whole answer',
        request: { labels: { team: 'a' } },
        path: `${location}/publishers/google/models/gemini-3-test:generateContent`,
        headers: { authorization: `Bearer ${canary}`, 'x-goog-api-key': undefined },
        body: { contents: [{ role: 'user', parts: [{ text: 'Hello' }] }], labels: { team: 'a' } },
      },
      {
        name: 'a stream of a tuned model',
        request: { model: 'endpoints/1234567890' },
        stream: true,
        path: `${location}/endpoints/1234567890:streamGenerateContent?alt=sse`,
      },
    ],
    embeddings: [
      {
        name: 'of a list',
        request: { model: 'text-embedding-005', input: ['sunny', 'rainy'], dimensions: 2, task_type: 'CLUSTERING' },
        sends: {
          instances: [
            { content: 'sunny', task_type: 'CLUSTERING' },
            { content: 'rainy', task_type: 'CLUSTERING' },
          ],
          parameters: { outputDimensionality: 2 },
        },
        whole: {
          body: {
            predictions: [
              { embeddings: { values: [0.1, 0.2], statistics: { token_count: 2, truncated: false } } },
              { embeddings: { values: [0.3, 0.4], statistics: { token_count: 3, truncated: false } } },
            ],
          },
        },
        vectors: [
          [0.1, 0.2],
          [0.3, 0.4],
        ],
        promptTokens: 5,
      },
    ],
  },
  {
    provider: 'vertex',
    variant: 'Claude, by an access token',
    model: 'claude-sonnet-4-5@20250929',
    folder: '/v1',
    settings,
    wire: claude.wire,
    answers: claude.answers,
    conversations: claude.conversations.map(withoutModel),
    earlyErrors: [...claude.earlyErrors, ...geminiAnswers.earlyErrors.slice(0, 2)],
    streamErrors: claude.streamErrors,
    encodings: [
      {
        name: 'a whole answer',
        request: { max_tokens: 10 },
        path: `${location}/publishers/anthropic/models/claude-sonnet-4-5@20250929:rawPredict`,
        headers: { authorization: `Bearer ${canary}`, 'x-api-key': undefined },
        body: { anthropic_version: 'vertex-2023-10-16', max_tokens: 10, model: undefined, stream: undefined },
      },
      {
        name: 'a stream',
        request: {},
        stream: true,
        path: `${location}/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict`,
        body: { anthropic_version: 'vertex-2023-10-16', stream: true },
      },
    ],
  },
  {
    provider: 'vertex',
    variant: 'other models',
    model: 'meta/llama-test-maas',
    folder: '/v1',
    settings,
    wire: openAi.wire,
    passThrough: true,
    answers: openAi.answers,
    conversations: openAi.conversations.map(withoutModel),
    earlyErrors: [...openAi.earlyErrors, ...geminiAnswers.earlyErrors.slice(0, 2)],
    streamErrors: openAi.streamErrors,
    encodings: [
      {
        name: 'a stream',
        request: { future_parameter: 1 },
        stream: true,
        path: `${location}/endpoints/openapi/chat/completions`,
        headers: { authorization: `Bearer ${canary}` },
        body: { model: 'meta/llama-test-maas', future_parameter: 1, stream_options: { include_usage: true } },
      },
    ],
  },
];

/** The same conversation; where the model is named is this provider's matter. */
function withoutModel(talk: Conversation): Conversation {
  return {
    ...talk,
    secondRequest: (ids) => {
      const { model: _model, ...rest } = talk.secondRequest(ids);
      return rest;
    },
  };
}
