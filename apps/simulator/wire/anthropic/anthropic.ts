import { readBearerToken } from '../bearer.ts';
import { Refusal, type Failure, type Received, type Route, type WireFormat } from '../wire-format.ts';
import { countCall, eventFrame, messagesCall } from './messages.ts';
import { parseFaultName } from '../../faults/faults.ts';
import { hashText } from '../../model/hash.ts';
import { createdAt } from '../openai/shapes.ts';
import { unescapePath } from '../unescape-path.ts';

const messages: Route = {
  name: 'POST /v1/messages',
  reads: 'json',
  call: (received) => {
    checkVersion(received);
    return messagesCall(received);
  },
};

const counts: Route = {
  name: 'POST /v1/messages/count_tokens',
  reads: 'json',
  call: (received) => {
    checkVersion(received);
    return countCall(received);
  },
};

/** The API of api.anthropic.com: Messages and models. */
export const anthropic: WireFormat = {
  find(method, path) {
    const posted = [messages, counts].find(({ name }) => name === `POST ${path}`);
    if (posted) return method === 'POST' ? posted : { name: posted.name, allow: 'POST' };
    if (method !== 'GET') return undefined;
    if (path === '/v1/models') return { name: 'GET /v1/models', resource: listModels };
    if (!path.startsWith('/v1/models/')) return undefined;
    return { name: 'GET /v1/models/{id}', resource: () => findModel(path.slice('/v1/models/'.length)) };
  },
  credential: (headers) => String(headers['x-api-key'] ?? readBearerToken(headers)),
  refuseCredential: (problem, shown) => ({
    status: 401,
    message: problem === 'missing' ? 'x-api-key header is required' : `invalid x-api-key ${shown}`.trimEnd(),
    type: 'authentication_error',
  }),
  errorBody: (failure, requestId) => JSON.stringify({ ...getFailureCode(failure), request_id: requestId }),
  form: {
    contentType: 'text/event-stream; charset=utf-8',
    errorFrame: (failure) =>
      eventFrame(getFailureCode(failure.status === 503 ? { status: 529, message: 'Overloaded' } : failure)),
    strayErrorFrame: (failure) => `data: ${JSON.stringify({ error: getFailureCode(failure).error })}\n\n`,
    brokenFrame: 'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{\n\n',
    idleFrame: eventFrame({ type: 'ping' }),
  },
  headers: ({ requestId, allowance }) => [
    'request-id',
    requestId,
    'anthropic-organization-id',
    '51a1ce00-0000-4000-8000-000000000000',
    'anthropic-ratelimit-requests-limit',
    String(allowance?.limit ?? 50_000),
    'anthropic-ratelimit-requests-remaining',
    String(allowance?.remaining ?? 49_999),
    'anthropic-ratelimit-requests-reset',
    new Date(Date.now() + (allowance?.resetMs ?? 1_000)).toISOString(),
  ],
};

/** The error for a status. Vertex also uses this format for Claude. */
function getFailureCode({ status, message, type }: Failure) {
  const known = type !== undefined && errorTypes.has(type) ? type : typeOf(status);
  return { type: 'error', error: { type: known, message } };
}

const errorTypes = new Set(['authentication_error', 'invalid_request_error', 'not_found_error', 'permission_error']);

function typeOf(status: number): string {
  switch (status) {
    case 401:
      return 'authentication_error';
    case 403:
      return 'permission_error';
    case 404:
      return 'not_found_error';
    case 413:
      return 'request_too_large';
    case 429:
      return 'rate_limit_error';
    case 503:
    case 529:
      return 'overloaded_error';
    case 504:
      return 'timeout_error';
    default:
      return status >= 500 ? 'api_error' : 'invalid_request_error';
  }
}

const versions: ReadonlySet<string> = new Set(['2023-01-01', '2023-06-01', '2026-10-21']);

function checkVersion({ headers }: Received): void {
  const version = headers['anthropic-version'];
  if (typeof version === 'string' && versions.has(version)) return;
  const message =
    version === undefined
      ? 'anthropic-version: header is required'
      : `anthropic-version: "${String(version)}" is not a valid version.`;
  throw new Refusal({ status: 400, message, type: 'invalid_request_error' });
}

const listed = [
  'claude-sonnet-4-5-20250929',
  'claude-haiku-4-5-20251001',
  'claude-opus-4-1-20250805',
  'sim-text',
  'sim-echo',
];
const limitDefault = 20;
const limitMax = 1_000;

/** GET /v1/models in pages: `limit`, `after_id`, `before_id`. */
function listModels({ query }: Received): string {
  const parameters = new URLSearchParams(query);
  const limit = Number(parameters.get('limit') ?? limitDefault);
  if (!Number.isInteger(limit) || limit < 1 || limit > limitMax) {
    throw new Refusal({ status: 400, message: `limit: Input should be between 1 and ${limitMax}` });
  }
  const after = listed.indexOf(parameters.get('after_id') ?? '');
  const before = listed.indexOf(parameters.get('before_id') ?? '');
  const rest = listed.slice(after + 1, before === -1 ? undefined : before);
  const page = rest.slice(0, limit);
  return JSON.stringify({
    data: page.map((id) => readModel(id)),
    has_more: rest.length > page.length,
    first_id: page[0] ?? null,
    last_id: page.at(-1) ?? null,
  });
}

/** GET /v1/models/{id}: accepts every name except misspelt faults. Throws Refusal (404). */
function findModel(escapedId: string): string {
  const id = unescapePath(escapedId);
  if (id === '' || parseFaultName(id) === 'unknown') throw new Refusal({ status: 404, message: `model: ${id}` });
  return JSON.stringify(readModel(id));
}

function readModel(id: string) {
  const createdAtText = new Date(createdAt(hashText(id)) * 1_000).toISOString().replace('.000Z', 'Z');
  return { type: 'model', id, display_name: id, created_at: createdAtText };
}
