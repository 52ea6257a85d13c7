import type { OutboundRequest, Upstream } from '../provider.ts';
import { partsOf } from '../url-parts.ts';
import { toPathSegment } from './models.ts';

/** A POST of JSON, or of its bytes, to an action of a model. Requests without an API key are signed by `authorize`. */
export function toBedrockRequest(
  { baseUrl, apiKey }: Upstream,
  model: string,
  action: string,
  body: unknown,
): OutboundRequest {
  const { origin, folder, search } = partsOf(baseUrl);
  const headers = ['content-type', 'application/json'];
  if (apiKey) headers.push('authorization', `Bearer ${apiKey.reveal()}`);
  const path = `${folder}/model/${toPathSegment(model)}/${action}${search}`;
  const bytes = body instanceof Uint8Array ? body : Buffer.from(JSON.stringify(body));
  return { method: 'POST', origin, path, headers, body: bytes };
}
