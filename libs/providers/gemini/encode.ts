import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call, OutboundRequest, Upstream } from '../provider.ts';
import { partsOf } from '../url-parts.ts';
import { toContents } from './contents.ts';
import { bothSpellings, generationParams, pickNative, toGenerationConfig } from './generation-config.ts';
import { argumentStreaming, toGeminiTools } from './schemas/tools.ts';
import { compact } from '../turns/json-value.ts';
import { readTurns } from '../turns/read-turns.ts';
import { assertPlainAnswer, droppedParams } from '../turns/turn-request.ts';

/** Gemini's own parameters outside of generationConfig, in either spelling; `labels` exist only on Vertex AI. */
const native = ['safety_settings', 'cached_content', 'labels', 'model_armor_config'] as const;

const taken = new Set([
  ...bothSpellings(native),
  ...generationParams,
  ...argumentStreaming,
  'tools',
  'tool_choice',
  'functions',
  'function_call',
]);

/** The form of a model's name as a path segment. It cannot leave the folder. */
const modelName = /^(?:(models|tunedModels)\/)?([A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.))*)$/;

/**
 * The body of a generateContent request, wherever the model runs. `dropped` lists the client's parameters that were
 * left out. Throws invalid_request for a parameter without an equivalent, and `unsupported_parameter` if dropping it
 * would change the answer's shape.
 */
export function encodeGeminiBody(call: Call): { body: Record<string, unknown>; dropped: string[] } {
  const request = readTurns(call);
  assertPlainAnswer(request, 'Gemini', { n: true, logprobs: true });
  const dropped = [...request.hints, ...droppedParams(request.body, taken)];
  const body = compact({
    ...pickNative(request.body, native),
    ...toContents(request, call),
    ...toGeminiTools(request, call.stream, dropped),
    generationConfig: toGenerationConfig(request, call.strict, dropped),
  });
  return { body, dropped: [...new Set(dropped)] };
}

/** POST {base}/models/{model}:generateContent, or the stream. The key is sent in a header, because URLs are logged. */
export function encodeGeminiChat(call: Call, upstream: Upstream): OutboundRequest {
  const method = call.stream ? 'streamGenerateContent?alt=sse' : 'generateContent';
  const path = `/${modelPath(call.model)}:${method}`;
  const { body, dropped } = encodeGeminiBody(call);
  return { ...toGeminiRequest(call, upstream, path, body), dropped };
}

/** POST {base}/models/{model}:{method} with a body in Gemini's own format. */
export const sendToGemini = (call: Call, upstream: Upstream, method: string, body: Uint8Array): OutboundRequest =>
  toGeminiRequest(call, upstream, `/${modelPath(call.model)}:${method}`, body);

/** A request of the Gemini API; without a body, a GET. */
export function toGeminiRequest(
  call: Call,
  { baseUrl, apiKey }: Upstream,
  path: string,
  body: object | Uint8Array | null,
): OutboundRequest {
  const headers = ['accept', call.stream ? 'text/event-stream' : 'application/json'];
  if (apiKey) headers.push('x-goog-api-key', apiKey.reveal());
  if (body !== null) headers.push('content-type', 'application/json');
  const { origin, folder } = partsOf(baseUrl);
  return {
    method: body === null ? 'GET' : 'POST',
    origin,
    path: folder + path,
    headers,
    body: body === null || body instanceof Uint8Array ? body : Buffer.from(JSON.stringify(body)),
  };
}

/** `models/{name}`. Throws invalid_request for a name that cannot be part of a path. */
export function modelPath(model: unknown): string {
  const [, kind = 'models', name] = modelName.exec(String(model)) ?? [];
  if (name !== undefined) return `${kind}/${encodeURIComponent(name)}`;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'model': expected a name such as gemini-2.5-flash, with letters, digits, '.', '_' and '-'.",
    { param: 'model' },
  );
}
