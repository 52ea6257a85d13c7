import { droppedParams } from '../chat/chat-request.ts';
import { embeddingNative, embeddingTaken, readInputTexts, toEmbeddingList } from '../gemini/embeddings.ts';
import { compact, asCount, asNumber, toRecord, toRecords, type Json } from '../chat/json-value.ts';
import type { Call, OutboundRequest, Upstream } from '../provider.ts';
import { ofPublisher } from './address.ts';
import { toVertexRequest } from './chat.ts';

const taken = new Set([...embeddingTaken, 'auto_truncate', 'autoTruncate']);

/** POST …/publishers/google/models/{model}:predict. The maximum of texts in one call depends on the model. */
export function encodeVertexEmbedding(call: Call, upstream: Upstream): OutboundRequest {
  const body = call.json();
  const { path } = ofPublisher('google', String(body['model']).replace(/^google[./]/, ''));
  const [taskType, title] = embeddingNative.map((name) => body[name] ?? body[name === 'task_type' ? 'taskType' : name]);
  const parameters = compact({
    outputDimensionality: asNumber(body['dimensions']),
    autoTruncate: body['auto_truncate'] ?? body['autoTruncate'] ?? undefined,
  });
  const sent = {
    instances: readInputTexts(body['input']).map((content) => compact({ content, task_type: taskType, title })),
    ...(Object.keys(parameters).length > 0 ? { parameters } : {}),
  };
  return { ...toVertexRequest(upstream, `${path}:predict`, sent, false), dropped: droppedParams(body, taken) };
}

/** Converts `predictions[].embeddings` to OpenAI's list; usage is the sum of all texts' tokens. */
export function decodeVertexEmbedding(body: unknown, call: Call): unknown {
  const { predictions } = toRecord(body);
  if (!Array.isArray(predictions)) return body; // The answer has no embeddings, which the core reports.
  const found = toRecords(predictions).map((prediction) => toRecord(prediction['embeddings']));
  const tokens = ({ statistics }: Json): number => asCount(toRecord(statistics)['token_count']);
  return toEmbeddingList(
    found.map(({ values }) => values),
    call,
    found.reduce((sum, embedding) => sum + tokens(embedding), 0),
  );
}
