import { hashText } from '../../model/hash.ts';
import { readBearerToken } from '../bearer.ts';
import { refuseUnknownModel } from './models.ts';
import type { Failure, Route, WireFormat } from '../wire-format.ts';
import { chatCall, eventFrame, uuidOf } from './chat.ts';
import { embedCall } from './embed.ts';
import { listModels, readModel } from './models.ts';

const operations: Record<string, Route> = {
  '/v2/chat': { name: 'POST /v2/chat', reads: 'json', call: chatCall },
  '/v2/embed': { name: 'POST /v2/embed', reads: 'json', call: embedCall },
};

/** The API of api.cohere.com: v2 chat and embed, v1 models. */
export const cohere: WireFormat = {
  find(method, path) {
    const operation = Object.hasOwn(operations, path) ? operations[path] : undefined;
    if (operation !== undefined) return method === 'POST' ? operation : { name: operation.name, allow: 'POST' };
    if (path === '/v1/models') return { name: 'GET /v1/models', resource: listModels };
    const [, name] = /^\/v1\/models\/([^/]+)$/.exec(path) ?? [];
    if (name === undefined) return undefined;
    return { name: 'GET /v1/models/{id}', resource: () => JSON.stringify(readModel(refuseUnknownModel(name))) };
  },
  credential: (headers) => readBearerToken(headers),
  refuseCredential: (problem) => ({
    status: 401,
    message: problem === 'missing' ? 'no api key supplied' : 'invalid api token',
  }),
  errorBody: (failure, requestId) => JSON.stringify(getFailureCode(failure, requestId)),
  form: {
    contentType: 'text/event-stream',
    // A stream that fails ends with the reason as its finish reason.
    errorFrame: ({ message }) => eventFrame({ type: 'message-end', delta: { finish_reason: 'ERROR', error: message } }),
    strayErrorFrame: (failure) => `data: ${JSON.stringify(getFailureCode(failure, 'stray'))}\n\n`,
    brokenFrame: 'event: content-delta\ndata: {"type":"content-delta","delta":{\n\n',
    idleFrame: ': keep-alive\n\n',
  },
  headers: ({ requestId, allowance }) => [
    'x-debug-trace-id',
    requestId,
    'x-trial-endpoint-call-limit',
    String(allowance?.limit ?? 10_000),
    'x-trial-endpoint-call-remaining',
    String(allowance?.remaining ?? 9_999),
  ],
};

function getFailureCode({ message }: Failure, requestId: string) {
  return { id: uuidOf(hashText(requestId)), message };
}
