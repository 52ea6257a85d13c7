import { readBearerToken } from '../bearer.ts';
import { unescapePath } from '../unescape-path.ts';
import type { Call, Received, Route, WireFormat } from '../wire-format.ts';
import { batchEmbedCall, embedCall } from './embed-content.ts';
import { generateCall } from './generate-content.ts';
import { googleError } from './google-error.ts';
import { findModel, listModels } from './models.ts';
import { eventForm } from './streams.ts';

const operations: Record<string, (received: Received, model: string) => Call> = {
  generateContent: (received, model) => generateCall(received, model, 'gemini', false),
  streamGenerateContent: (received, model) => generateCall(received, model, 'gemini', true),
  embedContent: embedCall,
  batchEmbedContents: batchEmbedCall,
};

/** The API of generativelanguage.googleapis.com. */
export const gemini: WireFormat = {
  find(method, path): Route | undefined {
    if (path === '/v1beta/models') return { name: 'GET /v1beta/models', resource: listModels };
    const [, escaped = '', name] = /^\/v1beta\/models\/([^/:]+)(?::([A-Za-z]+))?$/.exec(path) ?? [];
    if (escaped === '') return undefined;
    const model = unescapePath(escaped);
    if (name === undefined) return { name: 'GET /v1beta/models/{m}', resource: () => findModel(model) };
    const operation = Object.hasOwn(operations, name) ? operations[name] : undefined;
    if (operation === undefined) return undefined;
    const route = `POST /v1beta/models/{m}:${name}`;
    if (method !== 'POST') return { name: route, allow: 'POST' };
    return { name: route, reads: 'json', call: (received) => operation(received, model) };
  },
  credential: (headers, query) =>
    String(headers['x-goog-api-key'] ?? new URLSearchParams(query).get('key') ?? readBearerToken(headers)),
  refuseCredential: (problem) =>
    problem === 'missing'
      ? {
          status: 403,
          message:
            "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API.",
        }
      : { status: 400, message: 'API key not valid. Please pass a valid API key.', code: 'API_KEY_INVALID' },
  errorBody: (failure) => JSON.stringify(googleError(failure)),
  form: eventForm,
  retryInBody: true,
  headers: ({ processingMs }) => ['server-timing', `gfet4t7; dur=${Math.round(processingMs)}`],
};
