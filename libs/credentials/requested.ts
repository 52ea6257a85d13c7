import type { IncomingHttpHeaders } from 'node:http';
import type { Request } from 'express';
import { fingerprintBody } from '#libs/event-log/idempotency.ts';
import { getJsonBody } from '#libs/http/bodies/json-body.ts';
import { readBearerToken, readGatewayKeyHeader, readHeader } from '#libs/identity/credential-headers.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { CallerDefaults } from '#libs/http/caller.ts';
import type { ProviderSettings } from './provider-settings.ts';
import { looksLikeGatewayKey } from '#libs/identity/gateway-key.ts';

/** The `x-gateway-` headers that determine where a request goes, for the documentation of routes that read them. */
export const credentialHeaders = ['virtual-key', 'provider', 'config', 'custom-host'] as const;

/**
 * The credential that a request names, before anything is looked up: a virtual key, a config, a provider with its own
 * credential, or none if its key has a default. A request is a live call, the creation of a batch or of a fine-tuning
 * job, or a call that is made for one of these later.
 */
export type RequestedCredential = {
  virtualKey: NamedKey | null;
  provider: string | null;
  /** The caller's own key of the provider. */
  providerKey: Secret | null;
  customHost: string | null;
  /** The slug or ID of a stored config, the text of a config, or (in a batch's options) a config as an object. */
  config: { value: string | object; param: string } | null;
  /** The settings of `provider`, if they are known already; otherwise they are read from `headers`. */
  own?: OwnProvider;
  /** The provider's own settings are read from here, but only when they are needed. */
  headers?: IncomingHttpHeaders;
};

export type OwnProvider = ProviderSettings & { customHost?: string | null };

/**
 * A virtual key by its slug, with the header or parameter that contained it, or by its ID, as its `holder` (a batch)
 * stores it.
 */
type NamedKey = { slug: string; param: string; id?: undefined } | { id: string; holder: string; slug?: undefined };

/** The credential of a request that names none. */
export const nothingRequested: RequestedCredential = {
  virtualKey: null,
  provider: null,
  providerKey: null,
  customHost: null,
  config: null,
};

/**
 * Reads the credentials from a request's headers. The bearer token is a provider's key only if the gateway key has its own
 * header and the token is not a gateway key: unmodified SDKs send the gateway key there, and it must not be sent to a
 * provider. `x-portkey-*` headers are aliases of ours. Throws invalid_request when two headers name different virtual keys.
 */
export function readCredentials(headers: IncomingHttpHeaders): RequestedCredential {
  const gatewayKey = readGatewayKeyHeader(headers);
  const bearer = gatewayKey === null ? null : readBearerToken(headers);
  const isProviderKey = bearer !== null && bearer !== gatewayKey && !looksLikeGatewayKey(bearer);
  const config = readHeader(headers, 'x-gateway-config', 'x-portkey-config');
  const named = namedProvider(readHeader(headers, 'x-gateway-provider', 'x-portkey-provider'), 'x-gateway-provider');
  const slug = readHeader(headers, 'x-gateway-virtual-key', 'x-portkey-virtual-key');
  const virtualKey = slug === null ? null : { slug: withoutAt(slug), param: 'x-gateway-virtual-key' };
  if (virtualKey && named.virtualKey && virtualKey.slug !== named.virtualKey.slug) {
    throw new GatewayError(
      'invalid_request',
      'ambiguous_virtual_key',
      'The headers x-gateway-virtual-key and x-gateway-provider name two different virtual keys. Send only one of them.',
      { param: 'x-gateway-virtual-key' },
    );
  }
  return {
    virtualKey: virtualKey ?? named.virtualKey,
    provider: named.provider,
    providerKey: isProviderKey ? new Secret(bearer) : null,
    customHost: readHeader(headers, 'x-gateway-custom-host', 'x-portkey-custom-host'),
    config: config === null ? null : { value: config, param: 'x-gateway-config' },
    headers,
  };
}

/** The name of a provider, or the slug of a virtual key with `@` in front. */
export function namedProvider(
  name: string | null,
  param: string,
): Pick<RequestedCredential, 'provider' | 'virtualKey'> {
  if (name?.startsWith('@')) return { provider: null, virtualKey: { slug: withoutAt(name), param } };
  return { provider: name, virtualKey: null };
}

/**
 * The slug in a model of the form `@slug/model`, and the model to request from the provider; null for any other model.
 * Throws invalid_request when one of the two parts is missing.
 */
export function splitSlug(model: string | null): { slug: string; model: string } | null {
  if (model === null || !model.startsWith('@')) return null;
  const slash = model.indexOf('/');
  if (slash > 1 && slash < model.length - 1) return { slug: model.slice(1, slash), model: model.slice(slash + 1) };
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'model': a model that begins with @ must have the form @virtual-key/model, such as @my-openai/gpt-5-mini.",
    { param: 'model' },
  );
}

const withoutAt = (slug: string): string => (slug.startsWith('@') ? slug.slice(1) : slug);

/** Identifies repeats of a call whose headers also name its target: the same body for another target is another call. */
export function fingerprintCall(request: Request, credentials: RequestedCredential): string {
  const { virtualKey, provider, customHost, config } = credentials;
  const named = JSON.stringify([virtualKey?.slug, provider, customHost, config?.value]);
  return fingerprintBody(Buffer.concat([getJsonBody(request).bytes, Buffer.from(named)]));
}

/** The config settings of a key's defaults. */
export type ConfigDefaults = Pick<CallerDefaults, 'configId' | 'allowsConfigOverride'>;

/** For requests without a key's defaults. */
export const noDefaults: ConfigDefaults = { configId: null, allowsConfigOverride: true };

/**
 * Rejects a request that would replace the fixed default config of its key, or change it for one call: with another
 * config, or with headers that override its members (`hasOptions`). Headers that name a virtual key, provider or host
 * are allowed, because targets only use them if the config leaves that open. Throws forbidden.
 */
export function refuseConfigOverride(
  { allowsConfigOverride }: ConfigDefaults,
  { config }: Pick<RequestedCredential, 'config'>,
  hasOptions: boolean,
): void {
  if (allowsConfigOverride) return;
  if (config !== null) {
    throw forbidden(`leave out ${config.param}`, config.param);
  }
  if (hasOptions) {
    const names = 'request-timeout, retry-count, forward-headers, strict-open-ai-compliance, cache and cache-ttl';
    throw forbidden(`leave out the x-gateway- headers that change one (${names})`, null);
  }
}

const forbidden = (remedy: string, param: string | null): GatewayError =>
  new GatewayError(
    'forbidden',
    'config_override_not_allowed',
    `The config of this API key is fixed (allow_config_override is false). Either ${remedy}, or use another key.`,
    { param },
  );
