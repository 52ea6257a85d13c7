import { chatCall } from './chat.ts';
import { embeddingsCall } from './embeddings.ts';
import { createdAt, frame } from './shapes.ts';
import { textCall } from './text-completions.ts';
import { readBearerToken } from '../bearer.ts';
import { Refusal, type Failure, type Route, type WireFormat } from '../wire-format.ts';
import { parseFaultName } from '../../faults/faults.ts';
import { hashText } from '../../model/hash.ts';
import { unescapePath } from '../unescape-path.ts';

const operations = new Map<string, Route>(
  Object.entries({
    '/v1/chat/completions': chatCall,
    '/v1/completions': textCall,
    '/v1/embeddings': embeddingsCall,
  }).map(([path, call]) => [path, { name: `POST ${path}`, reads: 'json', call }]),
);

/** The stateless part of the API of api.openai.com: models and their answers. */
export const openai: WireFormat = {
  find(method, path) {
    const operation = operations.get(path);
    if (operation !== undefined) return method === 'POST' ? operation : { name: operation.name, allow: 'POST' };
    if (method === 'GET') return findModels(path);
    return undefined;
  },
  credential: readBearerToken,
  refuseCredential(problem, shown) {
    if (problem === 'wrong') {
      return { status: 401, message: `Incorrect API key provided: ${shown}.`, code: 'invalid_api_key' };
    }
    const message =
      "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";
    return { status: 401, message };
  },
  errorBody: (failure) => JSON.stringify({ error: getFailureCode(failure) }),
  form: {
    contentType: 'text/event-stream; charset=utf-8',
    errorFrame: (failure) => frame(JSON.stringify({ error: getFailureCode(failure) })),
    strayErrorFrame: (failure) => `event: error\n${frame(JSON.stringify(getFailureCode(failure)))}`,
    brokenFrame: 'data: {"id":"broken","choices":[{\n\n',
    idleFrame: ': keep-alive\n\n',
  },
  headers: ({ requestId, processingMs, allowance }) => [
    'x-request-id',
    requestId,
    'openai-processing-ms',
    String(Math.round(processingMs)),
    'openai-version',
    '2020-10-01',
    'openai-organization',
    'sluice-simulator',
    ...(allowance === undefined
      ? unlimited
      : [
          'x-ratelimit-limit-requests',
          String(allowance.limit),
          'x-ratelimit-remaining-requests',
          String(allowance.remaining),
          'x-ratelimit-reset-requests',
          goDuration(allowance.resetMs),
          ...tokenLimit,
        ]),
  ],
};

function findModels(path: string): Route | undefined {
  if (path === '/v1/models') return { name: 'GET /v1/models', resource: listModels };
  if (!path.startsWith('/v1/models/')) return undefined;
  return { name: 'GET /v1/models/{id}', resource: () => findModel(path.slice('/v1/models/'.length)) };
}

const tokenLimit = [
  'x-ratelimit-limit-tokens',
  '150000000',
  'x-ratelimit-remaining-tokens',
  '149999000',
  'x-ratelimit-reset-tokens',
  '0s',
];
const unlimited = [
  'x-ratelimit-limit-requests',
  '30000',
  'x-ratelimit-remaining-requests',
  '29999',
  'x-ratelimit-reset-requests',
  '2ms',
  ...tokenLimit,
];

function getFailureCode({ status, message, type, param, code }: Failure) {
  return { message, type: type ?? typeOf(status), param: param ?? null, code: code ?? null };
}

function typeOf(status: number): string {
  if (status === 429) return 'requests';
  if (status === 403) return 'permission_error';
  if (status === 503 || status === 529) return 'service_unavailable_error';
  return status >= 500 ? 'server_error' : 'invalid_request_error';
}

/** `12ms`, `1s`, `6m0s`: the format of Go's durations, which the service uses in its reset headers. */
function goDuration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)}ms`;
  const seconds = Math.round(ms / 100) / 10;
  return seconds < 60 ? `${seconds}s` : `${Math.floor(seconds / 60)}m${Math.floor(seconds % 60)}s`;
}

// Any name works. These are listed for clients that offer a choice of models.
const listed = [
  'sim-text',
  'sim-echo',
  'sim-reflect',
  'gpt-4o',
  'gpt-4o-mini',
  'gpt-4.1-nano',
  'gpt-3.5-turbo-instruct',
  'text-embedding-3-small',
  'text-embedding-3-large',
  'sim-fault-429',
  'sim-fault-500-then-ok-2',
  'sim-flaky-10',
  'sim-storm-95',
];

/** GET /v1/models. */
function listModels(): string {
  return JSON.stringify({ object: 'list', data: listed.map((id) => readModel(id)) });
}

/** GET /v1/models/{id}: accepts every name except misspelt faults. Throws Refusal (404). */
function findModel(escapedId: string): string {
  const id = unescapePath(escapedId);
  if (id === '' || parseFaultName(id) === 'unknown') {
    throw new Refusal({
      status: 404,
      message: `The model '${id}' does not exist`,
      type: 'invalid_request_error',
      param: 'model',
      code: 'model_not_found',
    });
  }
  return JSON.stringify(readModel(id));
}

function readModel(id: string) {
  return { id, object: 'model', created: createdAt(hashText(id)), owned_by: 'sluice-simulator' };
}
