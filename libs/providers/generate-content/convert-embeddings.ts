import { GatewayError } from '#libs/kernel/errors.ts';
import { type Json, asNumber, asText, compact, toRecord, toRecords } from '../turns/json-value.ts';
import { listOf, readMember } from './member.ts';

/**
 * Bodies of embedContent, which the contract has checked, as one of OpenAI's embeddings (ai.google.dev/api/embeddings). Google's
 * own parameters keep their names, which only its adapters know. Throws invalid_request for a part that is not text, and for
 * parameters that differ between the requests.
 */
export function toEmbeddingRequest(requests: readonly Json[], model: string): Json {
  const own = requests.map((request) => ({
    dimensions: asNumber(readMember(request, 'outputDimensionality')),
    taskType: asText(readMember(request, 'taskType')),
    title: asText(request['title']),
  }));
  const [first = {}] = own;
  if (own.some((each) => JSON.stringify(each) !== JSON.stringify(first))) {
    const message = "Invalid 'requests': all of them must have the same taskType, title and outputDimensionality.";
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'requests' });
  }
  const input = requests.map((request, index) => readText(request, `requests[${index}].content`));
  return compact({ model, input, ...first });
}

function readText(request: Json, param: string): string {
  const texts = listOf(toRecord(request['content'])['parts']).map((part) => asText(toRecord(part)['text']));
  if (texts.length > 0 && texts.every((text) => text !== undefined)) return texts.join('\n');
  const message = `Invalid '${param}': expected parts that have text. Only texts can be embedded here.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param });
}

/** OpenAI's answer to that as Google's: one embedding, or a list of them. */
export function toEmbeddingAnswer(answer: Json, isList: boolean): Json {
  const embeddings = toRecords(answer['data']).map(({ embedding }) => ({ values: embedding }));
  const { prompt_tokens: tokens } = toRecord(answer['usage']);
  const usage =
    typeof tokens === 'number' ? { usageMetadata: { promptTokenCount: tokens, totalTokenCount: tokens } } : {};
  return isList ? { embeddings, ...usage } : { embedding: embeddings[0] ?? { values: [] }, ...usage };
}
