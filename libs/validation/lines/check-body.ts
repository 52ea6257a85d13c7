import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import { z } from 'zod';
import type { BatchEndpoint } from '#libs/contracts/batches/batches.ts';
import { chatBreach, completionBreach } from '#libs/contracts/calls/body-rules.ts';
import { ChatCompletionRequest } from '#libs/contracts/calls/chat.ts';
import { CompletionRequest } from '#libs/contracts/calls/completions.ts';
import { describeBreach, type Breach, type Problem } from '#libs/contracts/calls/describe-issue.ts';
import { EmbeddingRequest } from '#libs/contracts/calls/embeddings.ts';
import { toJsonSchema } from '#libs/contracts/json-schema.ts';
import {
  BatchEmbedContentsRequest,
  CountTokensRequest,
  EmbedContentRequest,
  GenerateContentRequest,
} from '#libs/contracts/calls/generate-content.ts';
import { MessageRequest } from '#libs/contracts/calls/messages.ts';
import { outputBounds } from '#libs/contracts/calls/output-bounds.ts';
import { ResponseRequest } from '#libs/contracts/calls/responses.ts';
import { tryParse } from '#libs/contracts/parse.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { shortenBody } from './shorten-body.ts';

/** The contracts of bodies: of those that batches can have by their endpoint, of others by a name. */
export type ContractName =
  | BatchEndpoint
  | 'generate_content'
  | 'count_content_tokens'
  | 'embed_content'
  | 'batch_embed_contents';

type BodyContract = { schema: z.ZodType; breach: (body: never) => Breach | null };

// These bodies are forwarded unchanged. The provider checks the rest.
const relayed: BodyContract = { schema: z.looseObject({ model: z.string(), ...outputBounds }), breach: () => null };

const contracts: Record<ContractName, BodyContract> = {
  generate_content: { schema: GenerateContentRequest, breach: () => null },
  count_content_tokens: { schema: CountTokensRequest, breach: () => null },
  embed_content: { schema: EmbedContentRequest, breach: () => null },
  batch_embed_contents: { schema: BatchEmbedContentsRequest, breach: () => null },
  '/v1/chat/completions': { schema: ChatCompletionRequest, breach: chatBreach },
  '/v1/completions': { schema: CompletionRequest, breach: completionBreach },
  '/v1/embeddings': { schema: EmbeddingRequest, breach: () => null },
  '/v1/messages': { schema: MessageRequest, breach: () => null },
  '/v1/responses': { schema: ResponseRequest, breach: () => null },
  '/v1/moderations': relayed,
  '/v1/images/generations': relayed,
};

const compiled = new Map<ContractName, ValidateFunction>();

function validatorFor(endpoint: ContractName): ValidateFunction {
  const known = compiled.get(endpoint);
  if (known !== undefined) return known;
  const ajv = new Ajv2020({ strict: false, validateFormats: false, validateSchema: false, logger: false });
  const validate = ajv.compile(toJsonSchema(contracts[endpoint].schema));
  compiled.set(endpoint, validate);
  return validate;
}

/**
 * The problem of a request body, or null: the same verdict and message as on the live route, with every param under
 * `body`. The JSON Schema generated from the route's schema checks the structure. If it rejects a body, the route's own
 * schema provides the message (and if that one accepts the body, it is valid).
 */
export function checkBody(endpoint: ContractName, body: unknown): Problem | null {
  return findProblem(endpoint, body, 'body');
}

/**
 * The check for the bodies of a live route. Throws the same errors as `parseWith` of the route's schema, but takes a
 * quarter of its time for a valid body and makes no copy. The schema is compiled when the check is created.
 */
export function createBodyCheck(endpoint: ContractName): (body: unknown) => void {
  validatorFor(endpoint);
  return (body) => {
    const problem = findProblem(endpoint, body, '');
    if (problem === null) return;
    throw new GatewayError('invalid_request', problem.code, problem.message, { param: problem.param });
  };
}

function findProblem(endpoint: ContractName, body: unknown, at: string): Problem | null {
  const { schema, breach } = contracts[endpoint];
  const validate = validatorFor(endpoint);
  if (validate(body)) {
    const broken = breach(body as never);
    return broken === null ? null : describeBreach(broken, at);
  }
  const short = shortenBody(body, validate.errors?.[0]?.instancePath ?? '');
  const parsed = tryParse(schema, short, at, body);
  if (!parsed.ok) return parsed.problem;
  const whole = short === body ? parsed : tryParse(schema, body, at);
  return whole.ok ? null : whole.problem;
}
