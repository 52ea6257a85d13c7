import { hashText } from '#apps/simulator/model/hash.ts';
import { readBearerToken } from '#apps/simulator/wire/bearer.ts';
import {
  Refusal,
  type Call,
  type Failure,
  type Received,
  type Route,
  type WireFormat,
} from '#apps/simulator/wire/wire-format.ts';
import { chatCall, eventFrame, uuidOf } from './chat.ts';
import { parseFaultName } from '#apps/simulator/faults/faults.ts';
import { unescapePath } from '#apps/simulator/wire/unescape-path.ts';
import { z } from 'zod';
import { embed, toBase64 } from '#apps/simulator/model/embed.ts';
import { countTokens } from '#apps/simulator/model/tokens.ts';
import { checkShape } from '#apps/simulator/wire/check-shape.ts';
import { refuse, refuseFlaw } from './decode-chat.ts';

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

const listed = ['command-a-03-2025', 'command-a-reasoning-08-2025', 'embed-v4.0', 'sim-text', 'sim-echo'];
const pageSizeDefault = 20;
const pageSizeMax = 1_000;

/** GET /v1/models in pages: `page_size`, `page_token`, `endpoint`. */
function listModels({ query }: Received): string {
  const parameters = new URLSearchParams(query);
  const endpoint = parameters.get('endpoint');
  const size = Math.min(Number(parameters.get('page_size') ?? pageSizeDefault), pageSizeMax);
  const fitting = listed.filter((name) => endpoint === null || endpointsOf(name).includes(endpoint));
  const from = Math.max(0, fitting.indexOf(parameters.get('page_token') ?? ''));
  const page = fitting.slice(from, from + size);
  const next = fitting[from + page.length];
  return JSON.stringify({
    models: page.map((name) => readModel(name)),
    ...(next === undefined ? {} : { next_page_token: next }),
  });
}

/** The model's name; throws Refusal (404) for a misspelt fault. Every other name exists. */
function refuseUnknownModel(escapedName: string): string {
  const name = unescapePath(escapedName);
  if (parseFaultName(name) !== 'unknown') return name;
  throw new Refusal({
    status: 404,
    message: `model '${name}' not found, make sure the correct model ID was used and that you have access to the model.`,
  });
}

function readModel(name: string) {
  return {
    name,
    is_deprecated: false,
    endpoints: endpointsOf(name),
    finetuned: false,
    context_length: 256_000,
    tokenizer_url: null,
    default_endpoints: [],
    features: name.startsWith('command') ? ['tools', 'json_schema'] : null,
  };
}

function endpointsOf(name: string): string[] {
  return name.startsWith('embed') ? ['embed'] : ['chat'];
}

const inputPart = z.union([
  z.strictObject({ type: z.literal('text'), text: z.string() }),
  z.strictObject({ type: z.literal('image_url'), image_url: z.strictObject({ url: z.string() }) }),
]);
const request = z.strictObject({
  model: z.string().min(1),
  input_type: z.enum(['search_document', 'search_query', 'classification', 'clustering', 'image']),
  texts: z.array(z.string()).min(1).max(96).optional(),
  images: z.array(z.string()).min(1).max(1).optional(),
  inputs: z
    .array(z.strictObject({ content: z.array(inputPart).min(1) }))
    .min(1)
    .max(96)
    .optional(),
  max_tokens: z.int().optional(),
  output_dimension: z.union([z.literal(256), z.literal(512), z.literal(1024), z.literal(1536)]).optional(),
  embedding_types: z
    .array(z.enum(['float', 'int8', 'uint8', 'binary', 'ubinary', 'base64']))
    .min(1)
    .optional(),
  truncate: z.enum(['NONE', 'START', 'END']).optional(),
  priority: z.int().optional(),
});
const sizeDefault = 1024;
type Kind = NonNullable<z.output<typeof request>['embedding_types']>[number];

/** POST /v2/embed. */
function embedCall(received: Received): Call {
  const body = checkShape(request, received.json, refuseFlaw);
  const { model, texts, images, inputs } = body;
  if ([texts, images, inputs].filter((given) => given !== undefined).length !== 1) {
    refuse('invalid request: exactly one of texts, images and inputs must be given.');
  }
  const items = texts ?? images ?? (inputs ?? []).map((input) => JSON.stringify(input));
  return {
    model,
    hash: hashText(`${model}\n${items.join('\n')}`),
    user: undefined,
    stream: false,
    frames: () => [],
    body: ({ manner, omitUsage }) => {
      const vectors = items.map((item) => embed(hashText(`${model}\n${item}`), body.output_dimension ?? sizeDefault));
      const kinds = body.embedding_types ?? ['float'];
      const tokens = items.reduce((sum, item) => sum + countTokens(item), 0);
      const billed = omitUsage === true ? {} : { billed_units: { input_tokens: tokens } };
      return JSON.stringify({
        id: uuidOf(hashText(items.join('\n'))),
        texts: texts ?? [],
        embeddings: Object.fromEntries(kinds.map((kind) => [kind, vectors.map((vector) => convert(vector, kind))])),
        meta: { api_version: { version: '2' }, ...billed },
        response_type: 'embeddings_by_type',
        ...(manner === 'reflect' ? { reflected_body: received.text } : {}),
      });
    },
  };
}

function convert(vector: readonly number[], kind: Kind): unknown {
  switch (kind) {
    case 'float':
      return vector;
    case 'base64':
      return toBase64(vector);
    case 'int8':
      return vector.map((value) => Math.round(value * 127));
    case 'uint8':
      return vector.map((value) => Math.round(value * 127) + 128);
    case 'ubinary':
      return packBits(vector);
    case 'binary':
      return packBits(vector).map((byte) => byte - 128);
  }
}

function packBits(vector: readonly number[]): number[] {
  return Array.from({ length: Math.ceil(vector.length / 8) }, (_, at) =>
    vector.slice(at * 8, at * 8 + 8).reduce((byte, value, bit) => byte | (value > 0 ? 0x80 >> bit : 0), 0),
  );
}
