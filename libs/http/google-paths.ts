import { GatewayError } from '#libs/kernel/errors.ts';

/** The methods of Google's models that have routes here. */
const googleMethods = [
  'generateContent',
  'streamGenerateContent',
  'countTokens',
  'embedContent',
  'batchEmbedContents',
] as const;

const root =
  /^\/(v1beta1?|v1)\/(?:(?:projects\/[^/?]+\/locations\/[^/?]+\/)?publishers\/google\/)?models(?:\/([^?]*))?(\?.*)?$/;
const method = new RegExp(`:(?:${googleMethods.join('|')})$`);

/**
 * Google's clients write the same calls below `/v1beta`, `/v1`, and the paths of Vertex AI, and the name of a model can contain
 * slashes. `isGoogles`: the key is in the header that only they use, so that the list of models is theirs, too, although its
 * path is the same as OpenAI's. Returns the URL as `/v1beta/models/{name}:{method}` with the name in one segment; null for any other URL. Throws
 * invalid_request for a key in the query, and URIError for a malformed escape.
 */
export function toGooglePath(url: string, isGoogles: boolean): string | null {
  const isBeta = url.startsWith('/v1beta');
  // The hot routes are neither.
  if (!isBeta && !(url.startsWith('/v1/') && (isGoogles || url.includes(':')))) return null;
  const [, version, rest = '', query = ''] = root.exec(url) ?? [];
  const verb = method.exec(rest)?.[0] ?? '';
  if (version === undefined || (verb === '' && !isBeta && !isGoogles)) return null;
  if (/[?&](?:key|access_token)=/.test(query)) throw keyInUrl();
  if (rest === '') return `/v1beta/models${query}`;
  const name = decodeURIComponent(rest.slice(0, rest.length - verb.length));
  return `/v1beta/models/${encodeURIComponent(name)}${verb}${query}`;
}

const keyInUrl = (): GatewayError =>
  new GatewayError(
    'invalid_request',
    'key_in_url',
    "A key in the URL is not accepted, because proxies and servers log URLs. Send it in the header 'x-goog-api-key', and replace it if it was real.",
    { param: 'key' },
  );
