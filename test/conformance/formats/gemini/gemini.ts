import { readBearerToken } from '#apps/simulator/wire/bearer.ts';
import { unescapePath } from '#apps/simulator/wire/unescape-path.ts';
import { Refusal, type Call, type Received, type Route, type WireFormat } from '#apps/simulator/wire/wire-format.ts';
import { batchEmbedCall, embedCall } from './embed-content.ts';
import { countCall } from './count-tokens.ts';
import { generateCall } from './generate-content.ts';
import { googleError } from './google-error.ts';
import { eventForm } from './streams.ts';
import { parseFaultName } from '#apps/simulator/faults/faults.ts';

const operations: Record<string, (received: Received, model: string) => Call> = {
  generateContent: (received, model) => generateCall(received, model, 'gemini', false),
  streamGenerateContent: (received, model) => generateCall(received, model, 'gemini', true),
  embedContent: embedCall,
  batchEmbedContents: batchEmbedCall,
  countTokens: countCall,
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

const listed = [
  'gemini-3-pro-preview',
  'gemini-2.5-pro',
  'gemini-2.5-flash',
  'gemini-embedding-001',
  'sim-text',
  'sim-echo',
];
const pageSizeDefault = 50;
const pageSizeMax = 1_000;

/** GET /v1beta/models in pages: `pageSize`, `pageToken`. */
function listModels({ query }: Received): string {
  const parameters = new URLSearchParams(query);
  const size = Math.min(Number(parameters.get('pageSize') ?? pageSizeDefault), pageSizeMax);
  const from = Math.max(0, listed.indexOf(parameters.get('pageToken') ?? ''));
  const page = listed.slice(from, from + size);
  const next = listed[from + page.length];
  return JSON.stringify({
    models: page.map((id) => readModel(id)),
    ...(next === undefined ? {} : { nextPageToken: next }),
  });
}

/** GET /v1beta/models/{m}: accepts every name except misspelt faults. Throws Refusal (404). */
function findModel(id: string): string {
  if (parseFaultName(id) === 'unknown') {
    throw new Refusal({ status: 404, message: `models/${id} is not found for API version v1beta.` });
  }
  return JSON.stringify(readModel(id));
}

function readModel(id: string) {
  const methods = id.includes('embedding')
    ? ['embedContent', 'batchEmbedContents']
    : ['generateContent', 'streamGenerateContent'];
  return {
    name: `models/${id}`,
    version: '001',
    displayName: id,
    description: 'A model of the simulator.',
    inputTokenLimit: 1_048_576,
    outputTokenLimit: 65_536,
    supportedGenerationMethods: methods,
  };
}
