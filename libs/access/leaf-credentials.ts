import { findProvider } from '#libs/providers/registry.ts';
import type { Leaf } from '#libs/calls/plan/plan.ts';
import { settingsOf } from '#libs/credentials/provider-settings.ts';
import type { Places } from './choose-credential.ts';
import type { RequestCredentials } from './request-credentials.ts';

/** The caller's credentials as one target of a config uses them, with their names in error messages. */
export type LeafUse = { credentials: RequestCredentials; at: Places };

/**
 * Returns the credentials of a target, completed with those of the caller. A key, a host and settings in the headers
 * belong to the provider that the headers name, so a target of another provider gets none of them. `at` is the path of
 * the target in the request.
 */
export function useLeaf(sent: RequestCredentials, leaf: Leaf, at: string): LeafUse {
  const { virtualKey, provider, apiKey, customHost, settings, secrets } = leaf.credentials;
  const isCallers = provider === null || sent.provider === null || isSame(provider, sent.provider);
  const hasOwnKey = apiKey !== null || Object.keys(secrets).length > 0;
  // A virtual key has its own settings. A host beside it is only compared with the one that it is stored for.
  const inherits = virtualKey === null && isCallers;
  const callers = inherits ? (sent.own ?? (sent.headers && settingsOf(sent.headers))) : undefined;
  return {
    credentials: {
      virtualKey:
        virtualKey === null ? (hasOwnKey ? null : sent.virtualKey) : { slug: virtualKey, param: `${at}.virtual_key` },
      // A virtual key determines its provider, whatever the headers say.
      provider: provider ?? (virtualKey === null ? sent.provider : null),
      providerKey: apiKey ?? (inherits ? sent.providerKey : null),
      customHost: customHost ?? (isCallers ? sent.customHost : null),
      config: null,
      own: { settings: { ...callers?.settings, ...settings }, secrets: { ...callers?.secrets, ...secrets } },
    },
    at: {
      provider: provider === null ? 'x-gateway-provider' : `${at}.provider`,
      customHost: customHost === null && sent.customHost !== null ? 'x-gateway-custom-host' : `${at}.custom_host`,
      key: provider === null ? 'authorization' : `${at}.api_key`,
    },
  };
}

const isSame = (one: string, other: string): boolean =>
  one === other || (findProvider(one) !== undefined && findProvider(one) === findProvider(other));

/** Whether a target names its own destination. Then a virtual key in the caller's model does not change it. */
export const hasOwnPlace = ({ credentials }: Leaf): boolean =>
  credentials.virtualKey !== null || credentials.provider !== null || credentials.apiKey !== null;
