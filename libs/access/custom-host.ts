import { GatewayError } from '#libs/kernel/errors.ts';

const lengthMax = 2_048;

/**
 * The base URL that a caller gives for a provider, in its canonical form: http or https, host and path only.
 * Throws invalid_request for user name, password, query, fragment, spaces and backslashes, naming `param`. Whether the
 * address may be reached is judged where connections are opened (libs/calls/upstream/egress.ts).
 */
export function parseCustomHost(text: string, param: string): URL {
  const url = text.length <= lengthMax && !/[\s\\?#]/.test(text) && URL.canParse(text) ? new URL(text) : null;
  const isUsable = url !== null && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '';
  if (isUsable) return url;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    `Invalid ${param}: expected the base URL of a server, like https://llm.example.com/v1, of at most ${lengthMax} ` +
      'characters and without user name, password, query and fragment.',
    { param },
  );
}

/** How a custom host is stored and compared: as URL spells it, without slashes at the end. */
export const canonicalHost = (url: URL): string => url.href.replace(/\/+$/, '');
