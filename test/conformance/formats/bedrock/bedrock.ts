import { readBearerToken } from '#apps/simulator/wire/bearer.ts';
import { unescapePath } from '#apps/simulator/wire/unescape-path.ts';
import type { Call, Failure, Received, WireFormat } from '#apps/simulator/wire/wire-format.ts';
import { converseCall } from './converse.ts';
import { eventStreamForm } from './event-stream.ts';
import { z } from 'zod';
import { embed } from '#apps/simulator/model/embed.ts';
import { hashText, hexOf } from '#apps/simulator/model/hash.ts';
import { countTokens } from '#apps/simulator/model/tokens.ts';
import { checkShape } from '#apps/simulator/wire/check-shape.ts';
import { refuse, refuseFlaw } from './refuse.ts';

type Operation = (received: Received, model: string) => Call;

const operations: Record<string, Operation> = {
  converse: (received, model) => converseCall(received, model, false),
  'converse-stream': (received, model) => converseCall(received, model, true),
  invoke: invokeCall,
};

/** The runtime API of Amazon Bedrock: Converse, ConverseStream, and InvokeModel for embeddings. */
export const bedrock: WireFormat = {
  find(method, path) {
    const [, id = '', name = ''] = /^\/model\/([^/]+)\/([a-z-]+)$/.exec(path) ?? [];
    const operation = Object.hasOwn(operations, name) ? operations[name] : undefined;
    if (operation === undefined) return undefined;
    const route = `POST /model/{id}/${name}`;
    if (method !== 'POST') return { name: route, allow: 'POST' };
    return { name: route, reads: 'json', call: (received) => operation(received, unescapePath(id)) };
  },
  credential: (headers) => readAuthorization(headers.authorization)?.accessKeyId ?? readBearerToken(headers),
  refuseCredential: (problem) =>
    problem === 'missing'
      ? { status: 403, message: 'Missing Authentication Token', code: 'MissingAuthenticationTokenException' }
      : {
          status: 403,
          message: 'The security token included in the request is invalid.',
          code: 'UnrecognizedClientException',
        },
  errorBody: (failure) => JSON.stringify({ message: failure.message }),
  errorHeaders: (failure) => [
    'x-amzn-errortype',
    `${exceptionOf(failure)}:http://internal.amazon.com/coral/com.amazon.bedrock/`,
  ],
  form: eventStreamForm,
  headers: ({ requestId }) => ['x-amzn-requestid', findRequestId(requestId)],
};

function findRequestId(requestId: string): string {
  const digits = requestId.replace('req_', '');
  return [digits.slice(0, 8), digits.slice(8, 12), digits.slice(12, 16), digits.slice(16, 20), digits.slice(20)].join(
    '-',
  );
}

const exceptions: Record<number, string> = {
  400: 'ValidationException',
  401: 'UnrecognizedClientException',
  403: 'AccessDeniedException',
  404: 'ResourceNotFoundException',
  408: 'ModelTimeoutException',
  413: 'RequestEntityTooLargeException',
  424: 'ModelErrorException',
  429: 'ThrottlingException',
  503: 'ServiceUnavailableException',
};

function exceptionOf({ status, code }: Failure): string {
  if (typeof code === 'string' && code.endsWith('Exception')) return code;
  return exceptions[status] ?? (status >= 500 ? 'InternalServerException' : 'ValidationException');
}

export type Authorization = {
  accessKeyId: string;
  date: string;
  region: string;
  service: string;
  signedHeaders: string[];
  signature: string;
};

/**
 * The parts of an AWS4-HMAC-SHA256 Authorization header; undefined for another scheme or a malformed header.
 * @testOnly
 */
export function readAuthorization(header: string | undefined): Authorization | undefined {
  const match =
    /^AWS4-HMAC-SHA256 +Credential=([^/,\s]+)\/(\d{8})\/([^/,\s]+)\/([^/,\s]+)\/aws4_request, *SignedHeaders=([^,\s]+), *Signature=([0-9a-f]{64})$/.exec(
      header ?? '',
    );
  if (match === null) return undefined;
  const [, accessKeyId = '', date = '', region = '', service = '', signed = '', signature = ''] = match;
  return { accessKeyId, date, region, service, signedHeaders: signed.split(';'), signature };
}

const titan = z.strictObject({
  inputText: z.string().min(1),
  dimensions: z.union([z.literal(256), z.literal(512), z.literal(1024)]).optional(),
  normalize: z.boolean().optional(),
  embeddingTypes: z.array(z.enum(['float', 'binary'])).optional(),
});
const cohere = z.strictObject({
  texts: z.array(z.string().min(1)).min(1).max(96),
  input_type: z.enum(['search_document', 'search_query', 'classification', 'clustering']),
  truncate: z.enum(['NONE', 'START', 'END', 'LEFT', 'RIGHT']).optional(),
  embedding_types: z.array(z.literal('float', 'only float is simulated')).optional(),
  output_dimension: z.int().optional(),
});
const titanDimensions = 1024;
const titanOldDimensions = 1536;
const cohereDimensions = 1024;

/** POST /model/{id}/invoke, for the embedding models of Amazon Titan and Cohere. */
function invokeCall(received: Received, model: string): Call {
  const { answer, tokens, key } = model.includes('cohere.')
    ? cohereAnswer(received, model)
    : titanAnswer(received, model);
  return {
    model,
    hash: hashText(`${model}\n${key}`),
    user: undefined,
    stream: false,
    frames: () => [],
    body: ({ manner }) => JSON.stringify(manner === 'reflect' ? { ...answer, reflected_body: received.text } : answer),
    headers: ['x-amzn-bedrock-input-token-count', String(tokens), 'x-amzn-bedrock-invocation-latency', '1'],
  };
}

function titanAnswer({ json }: Received, model: string) {
  if (!('inputText' in json) && !/titan|sim/.test(model)) {
    refuse(`The simulator only supports embedding models of Titan (inputText) and Cohere (texts), not ${model}.`);
  }
  const { inputText, dimensions } = checkShape(titan, json, refuseFlaw);
  const size = dimensions ?? (model.includes('v1') ? titanOldDimensions : titanDimensions);
  const embedding = embed(hashText(`${model}\n${inputText}`), size);
  const inputTextTokenCount = countTokens(inputText);
  const typed = model.includes('v2') ? { embeddingsByType: { float: embedding } } : {};
  return { answer: { embedding, ...typed, inputTextTokenCount }, tokens: inputTextTokenCount, key: inputText };
}

function cohereAnswer({ json }: Received, model: string) {
  const { texts, embedding_types, output_dimension } = checkShape(cohere, json, refuseFlaw);
  const vectors = texts.map((text) => embed(hashText(`${model}\n${text}`), output_dimension ?? cohereDimensions));
  const key = texts.join('\n');
  const typed = embedding_types !== undefined;
  const answer = {
    id: hexOf(hashText(key), 32),
    texts,
    embeddings: typed ? { float: vectors } : vectors,
    response_type: typed ? 'embeddings_by_type' : 'embeddings_floats',
  };
  return { answer, tokens: countTokens(key), key };
}
