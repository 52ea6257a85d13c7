import { GatewayError } from '#libs/kernel/errors.ts';

/** The methods of Google's models that have routes here. */
const googleMethods = [
  'generateContent',
  'streamGenerateContent',
  'countTokens',
  'embedContent',
  'batchEmbedContents',
] as const;

// The AI SDK leaves out `models/` before a name with a slash.
const googleRoot =
  /^\/(v1beta1?|v1)\/(?:(?:projects\/[^/?]+\/locations\/[^/?]+\/)?publishers\/google\/)?(?:models(?:\/|(?=\?|$))|(?=@))([^?]*)(\?.*)?$/;
const googleMethod = new RegExp(`:(?:${googleMethods.join('|')})$`);

const azureDeployment = /^\/openai\/deployments\/([^?]+?)\/(chat\/completions|completions|embeddings)(?:\?|$)/;
const azureRoot = /^\/openai\/(?!deployments\/)(?:v1\/)?([^?]*)(\?.*)?$/;
const bedrockModel = /^\/model\/([^?]+)\/(invoke|invoke-with-response-stream)(?:\?|$)/;
const vertexModel =
  /^\/v1\/projects\/[^/?]+\/locations\/[^/?]+\/publishers\/anthropic\/models\/([^?]+):(rawPredict|streamRawPredict)(?:\?|$)/;

/**
 * Clients of other APIs put the version of the API, a project, or a model whose name can contain slashes into their URLs. Returns
 * the URL as the routes here have it, with the model in one segment; null for any other URL. `isGoogles`: the key is in the
 * header that only Google's clients use, so that the list of models is theirs, too, although its path is the same as OpenAI's.
 * Throws invalid_request for a key in the query, and URIError for a malformed escape.
 */
export function toOwnPath(url: string, isGoogles: boolean): string | null {
  // The hot routes begin like Google's only with a key in Google's header.
  if (url.startsWith('/v1/') && !isGoogles && !url.includes(':')) return null;
  if (url.startsWith('/v1')) return toVertexPath(url) ?? toGooglePath(url, isGoogles);
  if (url.startsWith('/openai/')) return toAzurePath(url);
  if (!url.startsWith('/model/')) return null;
  const [, model, action] = bedrockModel.exec(url) ?? [];
  return model === undefined ? null : `/model/${inOneSegment(model)}/${action}`;
}

function toGooglePath(url: string, isGoogles: boolean): string | null {
  const [, version, rest = '', query = ''] = googleRoot.exec(url) ?? [];
  const verb = googleMethod.exec(rest)?.[0] ?? '';
  if (version === undefined || (verb === '' && version === 'v1' && !isGoogles)) return null;
  if (/[?&](?:key|access_token)=/.test(query)) throw keyInUrl();
  if (rest === '') return `/v1beta/models${query}`;
  return `/v1beta/models/${inOneSegment(rest.slice(0, rest.length - verb.length))}${verb}${query}`;
}

/** A deployment is the name of a model. Everything else is OpenAI's API, in a version that the query names. */
function toAzurePath(url: string): string | null {
  const [, deployment, operation] = azureDeployment.exec(url) ?? [];
  if (deployment !== undefined) return `/openai/deployments/${inOneSegment(deployment)}/${operation}`;
  const [, path, query = '?'] = azureRoot.exec(url) ?? [];
  if (path === undefined) return null;
  const kept = query
    .slice(1)
    .split('&')
    .filter((part) => part !== '' && !part.startsWith('api-version='));
  return `/v1/${path}${kept.length === 0 ? '' : `?${kept.join('&')}`}`;
}

/** Vertex AI's paths of Claude. Counting tokens is the model `count-tokens` there. */
function toVertexPath(url: string): string | null {
  const [, model, method] = vertexModel.exec(url) ?? [];
  return model === undefined ? null : `/v1/publishers/anthropic/models/${inOneSegment(model)}:${method}`;
}

const inOneSegment = (name: string): string => encodeURIComponent(decodeURIComponent(name));

const keyInUrl = (): GatewayError =>
  new GatewayError(
    'invalid_request',
    'key_in_url',
    "A key in the URL is not accepted, because proxies and servers log URLs. Send it in the header 'x-goog-api-key', and replace it if it was real.",
    { param: 'key' },
  );
