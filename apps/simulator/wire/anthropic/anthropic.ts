import { readBearerToken } from '../bearer.ts';
import { Refusal, type Failure, type Received, type Route, type WireFormat } from '../wire-format.ts';
import { eventFrame, messagesCall } from './messages.ts';
import { findModel, listModels } from './models.ts';

const messages: Route = {
  name: 'POST /v1/messages',
  reads: 'json',
  call: (received) => {
    checkVersion(received);
    return messagesCall(received);
  },
};

/** The API of api.anthropic.com: Messages and models. */
export const anthropic: WireFormat = {
  find(method, path) {
    if (path === '/v1/messages') return method === 'POST' ? messages : { name: messages.name, allow: 'POST' };
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
  ],
};

/** The error of a status. Vertex uses this format for Claude too. */
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

function checkVersion({ headers }: Received): void {
  const version = headers['anthropic-version'];
  if (version === '2023-06-01' || version === '2023-01-01') return;
  const message =
    version === undefined
      ? 'anthropic-version: header is required'
      : `anthropic-version: "${String(version)}" is not a valid version.`;
  throw new Refusal({ status: 400, message, type: 'invalid_request_error' });
}
