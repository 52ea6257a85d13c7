import type { ApiKeyType } from '#libs/contracts/people/api-keys.ts';
import type { AllowedNetworks } from '#libs/http/allowed-networks.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { ApiKeyDefaults } from '#libs/database/schema.ts';

/** What a key may do, for how long, and with which config. It can give no more than that to another key. */
export type KeyRights = Pick<Caller, 'principal' | 'scopes' | 'defaults' | 'expiresAtMs' | 'networks'>;

/** The scopes of a key, as stored. */
type StoredRights = {
  type?: ApiKeyType;
  scopes: readonly string[] | null;
  defaults: ApiKeyDefaults;
  /** The user of a user's key. */
  user_id?: string;
  /** Absent or null: it can be used from anywhere. */
  allowed_networks?: readonly string[] | null;
};

const isOfKey = (networks: AllowedNetworks): boolean => networks.of === 'API key';

/** The networks of a new key: those that were asked for, or else those of the key that creates it. */
export function inheritedNetworks(
  { networks: lists }: Pick<KeyRights, 'networks'>,
  wanted?: readonly string[] | null,
): { allowed_networks?: string[] } {
  const networks = wanted ?? lists?.find(isOfKey)?.texts;
  return networks ? { allowed_networks: [...networks] } : {};
}

/** Whether a key can be used from networks that the key of the request cannot. */
function isFromMoreNetworks({ networks: lists }: Pick<KeyRights, 'networks'>, wanted: StoredRights): boolean {
  const own = lists?.find(isOfKey);
  return own !== undefined && wanted.allowed_networks?.every((network) => own.contains(network)) !== true;
}

/**
 * Refuses a key that could do more than the key that creates or changes it. Throws forbidden with the parameter that
 * asks for too much.
 */
export function refuseMoreRights(maker: KeyRights, wanted: StoredRights): void {
  const { type, scopes, defaults } = wanted;
  if (type === 'organisation-service' && maker.principal.type !== 'organisation_key') {
    const message = "Only a key of the organisation can make another: leave out 'type', or use such a key.";
    throw new GatewayError('forbidden', 'organisation_key_required', message, { param: 'type' });
  }
  refuseMoreScopes(maker, scopes);
  if (isFromMoreNetworks(maker, wanted)) {
    const message =
      'The key of this request can only be used from its allowed_networks, and so can every key that it creates or changes. ' +
      'Choose allowed_networks within those of this key.';
    throw new GatewayError('forbidden', 'network_not_allowed', message, { param: 'allowed_networks' });
  }
  const isFixed = defaults.allow_config_override === false && (defaults.config_id ?? null) === maker.defaults.configId;
  if (maker.defaults.allowsConfigOverride || isFixed) return;
  const own =
    maker.defaults.configId === null ? 'no default config' : `the default config '${maker.defaults.configId}'`;
  throw new GatewayError(
    'forbidden',
    'config_override_not_allowed',
    `The config of this API key is fixed, and so is that of every key that it creates. Set ${own} and ` +
      'allow_config_override: false.',
    { param: 'defaults' },
  );
}

/**
 * Refuses to create, change or rotate a key of another user, because such a key acts in the name of that user, who may
 * be an owner. Throws forbidden.
 */
export function refuseKeyOfOther({ principal }: Pick<Caller, 'principal'>, userId: string | undefined): void {
  const isOwn = principal.type === 'user' && principal.id === userId;
  if (userId === undefined || isOwn || principal.type === 'organisation_key') return;
  throw new GatewayError(
    'forbidden',
    'key_of_other_user',
    'A key of a user is made, changed and rotated by that user, or with a key of the organisation.',
    { param: 'user_id' },
  );
}

/**
 * Refuses a key that would be valid for longer than the one that creates it. `expiresAtMs`: Infinity for never. Throws
 * forbidden.
 */
export function refuseLongerLife(maker: KeyRights, expiresAtMs: number): void {
  if (expiresAtMs <= maker.expiresAtMs) return;
  const last = new Date(maker.expiresAtMs).toISOString();
  throw new GatewayError(
    'forbidden',
    'outlives_its_maker',
    `The key of this request expires at ${last}, and a key that it creates may not expire later. Set 'expires_at' to that time or earlier.`,
    { param: 'expires_at' },
  );
}

/**
 * Refuses scopes that no route has, because a key with one of them would not do what its creator expects. `at` is their
 * path in the body. Throws invalid_request.
 */
export function refuseUnknownScopes(wanted: readonly string[], known: ReadonlySet<string>, at = 'scopes'): void {
  const index = wanted.findIndex((scope) => !known.has(scope));
  if (index === -1) return;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    `Invalid '${at}[${index}]': no operation has the scope '${wanted[index]?.slice(0, 100)}'. ` +
      `There are: ${[...known].toSorted().join(', ')}.`,
    { param: `${at}[${index}]` },
  );
}

function refuseMoreScopes({ scopes }: KeyRights, wanted: readonly string[] | null): void {
  if (scopes === 'all') return;
  const held = [...scopes].join(', ');
  if (wanted === null) {
    throw new GatewayError(
      'forbidden',
      'insufficient_scope',
      `A key without 'scopes' may do everything, but the key of this request may not. Choose scopes from ${held}.`,
      { param: 'scopes' },
    );
  }
  const missing = wanted.filter((scope) => !scopes.has(scope));
  if (missing.length === 0) return;
  throw new GatewayError(
    'forbidden',
    'insufficient_scope',
    `The key of this request does not have ${missing.join(', ')}, so it cannot give that to another key. It has ${held}.`,
    { param: 'scopes' },
  );
}

/**
 * Refuses that a key revokes, changes or rotates (`what`) one that may do more than itself. Otherwise a stolen key
 * could lock its owner out, or become the more powerful one. Throws forbidden.
 */
export function refuseStronger(
  { principal, scopes, defaults, networks }: KeyRights,
  key: StoredRights & { id: string },
  what: 'revoke' | 'change' | 'rotate',
): void {
  if (what !== 'revoke') refuseKeyOfOther({ principal }, key.user_id);
  const isScoped = scopes === 'all' || key.scopes?.every((scope) => scopes.has(scope)) === true;
  const isFixed = defaults.allowsConfigOverride || key.defaults.allow_config_override === false;
  const isOfOrganisation = key.type === 'organisation-service' && principal.type !== 'organisation_key';
  const isElsewhere = isFromMoreNetworks({ ...(networks && { networks }) }, key);
  if (isScoped && isFixed && !isOfOrganisation && !isElsewhere) return;
  throw new GatewayError(
    'forbidden',
    'insufficient_scope',
    `The key '${key.id}' may do more than the key of this request, which therefore cannot ${what} it. Use a key that may do as much.`,
    { param: 'id' },
  );
}
