import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { canonicalHost, parseCustomHost } from '#libs/credentials/custom-host.ts';
import type { LiveCredential } from '#libs/resources/stored-credential.ts';
import { authenticates, settingsOf, type ProviderSettings } from '#libs/credentials/provider-settings.ts';
import { unknownProvider } from '#libs/credentials/unknown-provider.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import type { RequestCredentials } from './request-credentials.ts';

/** The credential of a request. `none`: the request names neither a virtual key nor a provider. */
export type Credential =
  | { type: 'none' }
  | { type: 'virtual_key'; key: LiveCredential }
  | ({
      type: 'provider';
      provider: string;
      baseUrl: URL;
      customHost: string | null;
      apiKey: Secret | null;
    } & ProviderSettings);

const noSettings: ProviderSettings = { settings: {}, secrets: {} };

/** The names of the parts of a credential in error messages. */
export type Places = { provider: string; customHost: string; key: string };

const headerPlaces: Places = {
  provider: 'x-gateway-provider',
  customHost: 'x-gateway-custom-host',
  key: 'authorization',
};

type Deps = { snapshot: Pick<AccessSnapshot, 'findCredential'>; clock: Clock };

/**
 * Checks the credentials of a call (AUTH-1): a virtual key, or a provider with the caller's key, each with or without a
 * custom host. The config was already applied. `modelSlug` is the virtual key of `@slug/model`, which takes precedence
 * over the headers. Throws invalid_request with the header or parameter.
 */
export function chooseCredential(
  deps: Deps,
  workspaceId: string,
  credentials: RequestCredentials,
  modelSlug: string | null,
  at: Places = headerPlaces,
): Credential {
  const { virtualKey, customHost, provider } = credentials;
  if (modelSlug !== null) {
    return { type: 'virtual_key', key: usableVirtualKey(deps, workspaceId, modelSlug, 'model', customHost, at) };
  }
  if (virtualKey) {
    const key = usableVirtualKey(deps, workspaceId, virtualKey.slug, virtualKey.param, customHost, at);
    if (provider !== null) assertSameProvider(key, provider, at);
    return { type: 'virtual_key', key };
  }
  return provider === null ? { type: 'none' } : chooseProvider(provider, credentials, at);
}

function usableVirtualKey(
  { snapshot, clock }: Deps,
  workspaceId: string,
  slug: string,
  param: string,
  customHost: string | null,
  at: Places,
): LiveCredential {
  const key = snapshot.findCredential(workspaceId, slug);
  if (!key) throw unknownVirtualKey(slug, param);
  assertUsable(key, clock, param);
  if (customHost !== null) assertStoredHost(key, customHost, at.customHost);
  return key;
}

/** Throws when a virtual key or a provider is expired, and when the workspace may not use the integration any more. */
function assertUsable(key: LiveCredential, clock: Clock, param: string | null): void {
  if (key.blocked !== undefined) throw blocked(key, key.blocked, param);
  if (key.expiresAtMs > clock.now()) return;
  throw new GatewayError(
    'invalid_request',
    key.noun === 'provider' ? 'provider_expired' : 'virtual_key_expired',
    `The ${key.noun} '${key.slug}' expired at ${new Date(key.expiresAtMs).toISOString()}. Extend it or use another one.`,
    { param },
  );
}

const blocked = ({ slug }: LiveCredential, reason: NonNullable<LiveCredential['blocked']>, param: string | null) => {
  const texts = {
    integration_deleted: 'has been deleted. Create a provider from another one.',
    integration_unreadable:
      'is stored in a form that cannot be read. Change it so that it is stored again, or delete it.',
    integration_not_shared: 'is no longer shared with this workspace. A key of the organisation can share it again.',
  };
  const kind = reason === 'integration_unreadable' ? 'unavailable' : 'forbidden';
  return new GatewayError(kind, reason, `The integration of the provider '${slug}' ${texts[reason]}`, { param });
};

export const unknownVirtualKeyCode = 'virtual_key_not_found';

/** The same error for a key that never existed, one that was deleted, and one of another workspace. */
const unknownVirtualKey = (slug: string, param: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    unknownVirtualKeyCode,
    `There is no virtual key '${slug.slice(0, 100)}' and no provider of that slug. GET /v1/virtual-keys and ` +
      'GET /v1/providers list the ones you can use.',
    { param },
  );

function assertSameProvider(key: LiveCredential, name: string, at: Places): void {
  if (findProvider(name)?.id === key.provider) return;
  throw new GatewayError(
    'invalid_request',
    'provider_mismatch',
    `The ${key.noun} '${key.slug}' is for the provider '${key.provider}', not for '${name.slice(0, 100)}'. ` +
      'Leave the provider out.',
    { param: at.provider },
  );
}

/** A stored credential is only sent to the host that it was stored for (CVE-2024-6587). */
function assertStoredHost(key: LiveCredential, customHost: string, param: string): void {
  const given = canonicalHost(parseCustomHost(customHost, param));
  if (key.baseUrl && canonicalHost(key.baseUrl) === given) return;
  throw new GatewayError(
    'invalid_request',
    'custom_host_mismatch',
    `The ${key.noun} '${key.slug}' is not stored for this custom host. Leave the custom host out, or store a virtual ` +
      'key for that host.',
    { param },
  );
}

function chooseProvider(name: string, credentials: RequestCredentials, at: Places): Credential {
  const { customHost, providerKey, headers } = credentials;
  const provider = findProvider(name);
  if (!provider) throw unknownProvider(name, at.provider);
  const own = credentials.own ?? (headers === undefined ? noSettings : settingsOf(headers));
  const host = customHost === null ? null : parseCustomHost(customHost, at.customHost);
  const baseUrl = host ?? provider.baseUrlOf(own.settings);
  if (!baseUrl) {
    throw new GatewayError(
      'invalid_request',
      'missing_custom_host',
      `The provider '${provider.id}' has no default address, or the settings that determine it are missing. Give the address in ` +
        `${at.customHost}, or add those settings.`,
      { param: at.customHost },
    );
  }
  // A self-hosted server may need no key; a hosted provider always does.
  if (!providerKey && provider.needsCredential && !authenticates(own)) {
    throw new GatewayError(
      'invalid_request',
      'missing_credentials',
      `The provider '${provider.id}' needs a key. Send yours as Authorization: Bearer, with the gateway key in ` +
        'x-gateway-api-key, or use a virtual key.',
      { param: at.key },
    );
  }
  return {
    type: 'provider',
    provider: provider.id,
    baseUrl,
    customHost: host && canonicalHost(host),
    apiKey: providerKey,
    ...own,
  };
}

/** The error for a request that names no provider. */
export const missingCredentials = (): GatewayError =>
  new GatewayError(
    'invalid_request',
    'missing_credentials',
    'The request does not say which provider to call. There are four ways: a virtual key (header x-gateway-virtual-key, or the model as ' +
      '@virtual-key/model); x-gateway-provider with your provider key as Authorization: Bearer and the gateway key in ' +
      'x-gateway-api-key; x-gateway-config; or provider and key together with x-gateway-custom-host.',
    { param: 'x-gateway-virtual-key' },
  );
