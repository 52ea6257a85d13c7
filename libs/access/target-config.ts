import { z } from 'zod';
import { text } from '#libs/contracts/scalars.ts';
import { tryParse } from '#libs/contracts/parse.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/secret.ts';
import { assertSendable } from './assert-sendable.ts';
import { namedProvider, type RequestCredentials } from './request-credentials.ts';

// One target; strategies, overrides, retries and caching are for stored configs, which do not exist yet.
const TargetConfig = z.strictObject({
  provider: text({ min: 1, max: 200 }).optional(),
  api_key: text({ min: 1, max: 16_384 }).optional(),
  virtual_key: text({ min: 1, max: 200 }).optional(),
  custom_host: text({ min: 1, max: 2_048 }).optional(),
});

/**
 * Credentials with the request's config applied: its members win, and what it leaves out is the caller's. The config is
 * the one of the request, or else the key's default (`configId`).
 * Throws invalid_request: not JSON, unknown members, or a stored config that does not exist.
 */
export function applyConfig(credentials: RequestCredentials, configId: string | null): RequestCredentials {
  const { value, param } = credentials.config ?? { value: configId ?? '', param: null };
  if (value === '') return credentials;
  const config = typeof value === 'string' ? parseText(value, param) : value;
  const result = tryParse(TargetConfig, config, param ?? '');
  if (!result.ok) {
    const { code, message, param: at } = result.problem;
    throw new GatewayError('invalid_request', code, message, { param: at });
  }
  const { provider, api_key, virtual_key, custom_host } = result.value;
  const where = param ?? 'x-gateway-config';
  if (api_key !== undefined) assertSendable(api_key, `${where}.api_key`);
  const named = namedProvider(provider ?? null, `${where}.provider`);
  const slug = virtual_key?.replace(/^@/, '') ?? named.virtualKey?.slug;
  if (virtual_key !== undefined && named.virtualKey && named.virtualKey.slug !== slug) {
    throw refused(`${where}.virtual_key`, 'It names two different virtual keys; give one of them.');
  }
  if (slug !== undefined && api_key !== undefined) {
    throw refused(`${where}.api_key`, 'It has both a virtual key and an api_key; give one of them.');
  }
  const own =
    slug === undefined ? null : { slug, param: `${where}.${virtual_key === undefined ? 'provider' : 'virtual_key'}` };
  return {
    // An api_key of the config stands for itself: the caller's virtual key is not mixed into it.
    virtualKey: own ?? (api_key === undefined ? credentials.virtualKey : null),
    // A virtual key of the config brings its own provider, whatever the headers say.
    provider: named.provider ?? (own ? null : credentials.provider),
    providerKey: api_key === undefined ? credentials.providerKey : new Secret(api_key),
    customHost: custom_host ?? credentials.customHost,
    config: null,
  };
}

function parseText(value: string, param: string | null): unknown {
  if (!value.trimStart().startsWith('{')) throw noSuchConfig(value, param);
  try {
    return JSON.parse(value);
  } catch {
    throw refused(param, 'It is not valid JSON.');
  }
}

const refused = (param: string | null, what: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `The config cannot be used. ${what}`, { param });

/** The refusal of a config's slug or id; stored configs will be looked up where this is thrown. */
export const noSuchConfig = (slug: string, param: string | null): GatewayError =>
  new GatewayError(
    'invalid_request',
    'config_not_found',
    `There is no config '${slug.slice(0, 100)}'. Send the config itself as JSON, such as {"virtual_key":"my-openai"}.`,
    { param },
  );
