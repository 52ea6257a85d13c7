import { z } from 'zod';
import { anthropic } from '#apps/simulator/wire/anthropic/anthropic.ts';
import { mergeTurns, refuse as refuseMessages } from '#apps/simulator/wire/anthropic/turns.ts';
import { refuseFlaw as refuseConverse } from '#test/conformance/formats/bedrock/refuse.ts';
import { checkShape, type Flaw } from '#apps/simulator/wire/check-shape.ts';
import { refuseFlaw as refuseChat } from '#test/conformance/formats/cohere/decode-chat.ts';
import { camelCase } from '#test/conformance/formats/gemini/camel-case.ts';
import { refuseFlaw as refuseGoogle } from '#test/conformance/formats/gemini/google-error.ts';
import { Refusal, type Received } from '#apps/simulator/wire/wire-format.ts';
import { messagesRequest, vertexMessagesRequest } from './anthropic-schema.ts';
import { checkTurns as checkMessages } from './anthropic-turns.ts';
import { converseRequest } from './bedrock-schema.ts';
import { verifySignature } from './bedrock-signature.ts';
import { checkTurns as checkConverse } from './bedrock-turns.ts';
import { chatRequest } from './cohere-schema.ts';
import { checkTurns as checkChat } from './cohere-turns.ts';
import { content, geminiRequest, vertexRequest } from './gemini-schema.ts';
import { checkTurns as checkContents } from './gemini-turns.ts';

/**
 * Judges requests as the providers do (members, turns, thoughts, signatures), so that what an adapter sends is checked by code
 * that does not share its ideas. Throws Refusal with the provider's wording.
 */
export function checkStrictly(route: string, received: Received): void | Promise<void> {
  const { json, path } = received;
  if (route === 'POST /v1/messages') return checkClaude(messagesRequest, json);
  if (route.includes('publishers/anthropic')) return checkVertexClaude(json);
  if (route === 'POST /v2/chat') return checkChat(checkShape(chatRequest, json, refuseChat).messages);
  if (route.startsWith('POST /model/')) return checkBedrock(route, received);
  if (/:(stream)?generateContent$/i.test(route)) {
    const schema = route.includes('/projects/') ? vertexRequest : geminiRequest;
    const { contents } = checkShape(schema, camelCase(json), refuseGoogle);
    return checkContents(contents, /\/gemini-3[^/]*$/.test(path));
  }
  if (/mbedContents?$/.test(route)) checkShape(route.endsWith('s') ? batch : single, camelCase(json), refuseGoogle);
}

const single = z.looseObject({ content });
const batch = z.looseObject({ requests: z.array(single) });

function checkClaude(schema: typeof messagesRequest | typeof vertexMessagesRequest, json: unknown): void {
  const { messages, thinking } = checkShape(schema, json, refuseMember);
  checkMessages(mergeTurns(messages), thinking);
}

function checkVertexClaude(json: unknown): void {
  try {
    checkClaude(vertexMessagesRequest, json);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    const body = anthropic.errorBody(error.failure, 'req_vrtx_simulator');
    throw new Refusal({ ...error.failure, body }, { cause: error });
  }
}

async function checkBedrock(route: string, received: Received): Promise<void> {
  await verifySignature(received);
  if (!route.endsWith('/invoke')) checkConverse(checkShape(converseRequest, received.json, refuseConverse));
}

/** `max_tokens: Field required`, `foo: Extra inputs are not permitted`, … */
function refuseMember({ kind, path, message }: Flaw): never {
  const what = { missing: 'Field required', unknown: 'Extra inputs are not permitted', invalid: message }[kind];
  return refuseMessages(`${path.join('.')}: ${what}`);
}
