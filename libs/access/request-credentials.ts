import type { IncomingHttpHeaders } from 'node:http';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/secret.ts';
import type { ProviderSettings } from './provider-settings.ts';
import { looksLikeGatewayKey } from './gateway-key.ts';

/**
 * What a request says about the provider it wants, before any of it is judged: a virtual key, a config, a provider with its
 * own credential, or nothing but a default of its key. `x-portkey-*` headers are aliases of ours.
 */
export type RequestCredentials = {
  /** A slug, and the header or parameter that it came by. */
  virtualKey: { slug: string; param: string } | null;
  provider: string | null;
  /** The caller's own key of the provider. */
  providerKey: Secret | null;
  customHost: string | null;
  /** Slug or id of a stored config, the text of one, or (in a batch's options) one as an object. */
  config: { value: string | object; param: string } | null;
  /** The provider's own settings, where they are known already; otherwise they are looked for in `headers`. */
  own?: ProviderSettings;
  /** Where the provider's own settings are looked for, once it is known that they are needed. */
  headers?: IncomingHttpHeaders;
};

/** The gateway key's own header, null when it is absent or empty. */
const gatewayKeyHeaderOf = (headers: IncomingHttpHeaders): string | null =>
  headerOf(headers, 'x-gateway-api-key', 'x-portkey-api-key');

/** The token of `Authorization: Bearer`; null for other schemes. */
function bearerOf(headers: IncomingHttpHeaders): string | null {
  const value = headers.authorization;
  if (value === undefined || value.length <= 7 || value.slice(0, 7).toLowerCase() !== 'bearer ') return null;
  return value.slice(7).trim() || null;
}

/**
 * The gateway key of a request: in its own header, else the bearer, else where the SDKs of Azure (`api-key`) and of
 * Anthropic (`x-api-key`) put their key. None of these headers goes on to a provider.
 */
export const gatewayKeyOf = (headers: IncomingHttpHeaders): string | null =>
  gatewayKeyHeaderOf(headers) ?? bearerOf(headers) ?? headerOf(headers, 'api-key', 'x-api-key');

/**
 * Reads the credentials of a request's headers. The bearer is a provider's key only when the gateway key has its own
 * header, and never when it is a gateway key: unmodified SDKs send theirs there, and no provider may see it.
 * Throws invalid_request when two headers name different virtual keys.
 */
export function credentialsOf(headers: IncomingHttpHeaders): RequestCredentials {
  const gatewayKey = gatewayKeyHeaderOf(headers);
  const bearer = gatewayKey === null ? null : bearerOf(headers);
  const isProviderKey = bearer !== null && bearer !== gatewayKey && !looksLikeGatewayKey(bearer);
  const config = headerOf(headers, 'x-gateway-config', 'x-portkey-config');
  const named = namedProvider(headerOf(headers, 'x-gateway-provider', 'x-portkey-provider'), 'x-gateway-provider');
  const slug = headerOf(headers, 'x-gateway-virtual-key', 'x-portkey-virtual-key');
  const virtualKey = slug === null ? null : { slug: withoutAt(slug), param: 'x-gateway-virtual-key' };
  if (virtualKey && named.virtualKey && virtualKey.slug !== named.virtualKey.slug) {
    throw new GatewayError(
      'invalid_request',
      'ambiguous_virtual_key',
      'The headers x-gateway-virtual-key and x-gateway-provider name two different virtual keys; send one of them.',
      { param: 'x-gateway-virtual-key' },
    );
  }
  return {
    virtualKey: virtualKey ?? named.virtualKey,
    provider: named.provider,
    providerKey: isProviderKey ? new Secret(bearer) : null,
    customHost: headerOf(headers, 'x-gateway-custom-host', 'x-portkey-custom-host'),
    config: config === null ? null : { value: config, param: 'x-gateway-config' },
    headers,
  };
}

/** A provider's name; with `@` in front, a virtual key's slug. */
export function namedProvider(name: string | null, param: string): Pick<RequestCredentials, 'provider' | 'virtualKey'> {
  if (name?.startsWith('@')) return { provider: null, virtualKey: { slug: withoutAt(name), param } };
  return { provider: name, virtualKey: null };
}

/**
 * The slug in a model of the form `@slug/model`, and the model that the provider is asked for; null for any other model.
 * Throws invalid_request when one of the two parts is missing.
 */
export function slugOfModel(model: string | null): { slug: string; model: string } | null {
  if (model === null || !model.startsWith('@')) return null;
  const slash = model.indexOf('/');
  if (slash > 1 && slash < model.length - 1) return { slug: model.slice(1, slash), model: model.slice(slash + 1) };
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'model': a model that begins with @ has the form @virtual-key/model, like @my-openai/gpt-5-mini.",
    { param: 'model' },
  );
}

const withoutAt = (slug: string): string => (slug.startsWith('@') ? slug.slice(1) : slug);

// Whole names: one made of a prefix for each lookup costs more than the lookup.
function headerOf(headers: IncomingHttpHeaders, name: string, alias: string): string | null {
  const value = headers[name] || headers[alias];
  return typeof value === 'string' && value !== '' ? value : null;
}
