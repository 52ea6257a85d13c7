import { GatewayError } from '#libs/kernel/errors.ts';
import type { Settings } from '#libs/providers/provider.ts';
import { findProvider } from '#libs/providers/registry.ts';

const lengthMax = 2_048;

/**
 * The base URL that a caller specifies for a provider, in its canonical form: http or https, host and path only. Throws
 * invalid_request for user name, password, query, fragment, spaces and backslashes, naming `param`. Whether the address
 * is allowed is checked where connections are opened (libs/calls/upstream/egress/egress.ts).
 */
export function parseCustomHost(text: string, param: string): URL {
  const url = text.length <= lengthMax && !/[\s\\?#]/.test(text) && URL.canParse(text) ? new URL(text) : null;
  const isUsable = url !== null && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '';
  if (isUsable) return url;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    `Invalid ${param}: expected the base URL of a server, such as https://llm.example.com/v1, with at most ${lengthMax} characters and without a user name, password, query or fragment.`,
    { param },
  );
}

/** The form in which custom hosts are stored and compared: as URL spells it, without slashes at the end. */
export const canonicalHost = (url: URL): string => url.href.replace(/\/+$/, '');

/**
 * Checks where the calls of a stored credential go. Returns the canonical form of `customHost`, or null for the
 * provider's address with these settings. Throws invalid_request when there is none, and for a host that can never be
 * called.
 */
export function checkHost(
  checkDestination: (url: URL) => void,
  { provider, settings, customHost }: { provider: string; settings: Settings; customHost: string | null },
): string | null {
  if (customHost === null) {
    if (findProvider(provider)?.baseUrlOf(settings)) return null;
    throw missingHost(provider, settings);
  }
  const url = parseCustomHost(customHost, 'custom_host');
  checkDestination(url);
  return canonicalHost(url);
}

/**
 * The refusal of a target whose provider has no address: it has no fixed one, or one that depends on a missing setting.
 */
function missingHost(provider: string, settings: Settings): GatewayError {
  const address = findProvider(provider)?.address ?? '';
  const names = [...address.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name);
  const setting = names.find((name) => !settings[name]);
  return new GatewayError(
    'invalid_request',
    'missing_required_parameter',
    setting === undefined
      ? `Missing required parameter: 'custom_host'. The provider '${provider}' has no default address.`
      : `Missing required parameter: '${setting}'. The address of the provider '${provider}' is derived from it. Alternatively, set 'custom_host' to your own server.`,
    { param: setting ?? 'custom_host' },
  );
}
