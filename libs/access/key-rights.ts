import type { apiKeyFields, ApiKeyType, Scope } from '#libs/contracts/api-keys.ts';
import type { z } from 'zod';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { ApiKeyDefaults } from '#libs/database/schema.ts';

/** What a key may do, for how long, and by which config: what it can hand on to another key, and no more. */
export type KeyRights = Pick<Caller, 'principal' | 'scopes' | 'defaults' | 'expiresAtMs'>;

/**
 * Refuses a new key that could do more than its maker, or for longer. `configId` is the id of the default config that
 * `request` names. Throws forbidden, with the parameter that asks for too much.
 */
export function refuseMoreRights(
  maker: KeyRights,
  request: Partial<z.output<z.ZodObject<typeof apiKeyFields>>>,
  configId: string | null,
): void {
  const { scopes, defaults, expires_at: expiresAt } = request;
  if (request.type === 'organisation-service' && maker.principal.type !== 'organisation_key') {
    const message = "Only a key of the organisation can make another: leave out 'type', or use such a key.";
    throw new GatewayError('forbidden', 'organisation_key_required', message, { param: 'type' });
  }
  refuseMoreScopes(maker, scopes ?? null);
  if ((expiresAt?.getTime() ?? Number.POSITIVE_INFINITY) > maker.expiresAtMs) {
    const last = new Date(maker.expiresAtMs).toISOString();
    throw new GatewayError(
      'forbidden',
      'outlives_its_maker',
      `The key of this request expires at ${last}, and a key that it creates may not expire later. Set 'expires_at' to that time or earlier.`,
      { param: 'expires_at' },
    );
  }
  const isFixed = defaults?.allow_config_override === false && configId === maker.defaults.configId;
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

function refuseMoreScopes({ scopes }: KeyRights, wanted: readonly Scope[] | null): void {
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

/** Refuses that a key ends one that may do more than itself: a stolen one could shut its owner out. Throws forbidden. */
export function refuseRevokeOfStronger(
  { principal, scopes, defaults }: KeyRights,
  key: { id: string; type?: ApiKeyType; scopes: readonly string[] | null; defaults: ApiKeyDefaults },
): void {
  const isScoped = scopes === 'all' || key.scopes?.every((scope) => scopes.has(scope)) === true;
  const isFixed = defaults.allowsConfigOverride || key.defaults.allow_config_override === false;
  const isOfOrganisation = key.type === 'organisation-service' && principal.type !== 'organisation_key';
  if (isScoped && isFixed && !isOfOrganisation) return;
  throw new GatewayError(
    'forbidden',
    'insufficient_scope',
    `The key '${key.id}' may do more than the key of this request, which therefore cannot revoke it. Use a key that may do as much.`,
    { param: 'id' },
  );
}
