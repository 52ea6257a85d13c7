import type { ApiKeyType } from '#libs/contracts/people/api-keys.ts';
import type { OrganisationRole, WorkspaceRole } from '#libs/contracts/people/people.ts';
import type { ApiKeyDefaults } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AllowedNetworks } from './allowed-networks.ts';
import { organisationId, type Caller } from './caller.ts';
import { getRoleScopes } from './roles.ts';

// Decides what the caller of a request can do. Routes, streams and kinds of records ask here.

type Scoped = Pick<Caller, 'scopes'>;
type Acting = Pick<Caller, 'principal'>;

export const hasScope = ({ scopes }: Scoped, scope: string): boolean => scopes === 'all' || scopes.has(scope);

/** Whether the caller has every scope, also those that are added later. */
export const hasEveryScope = ({ scopes }: Scoped): boolean => scopes === 'all';

/** Returns the scopes of a list that the caller does not have. null: all scopes, of which none can be listed. */
const missingScopes = ({ scopes }: Scoped, wanted: readonly string[] | null): readonly string[] | null =>
  scopes === 'all' ? [] : (wanted?.filter((scope) => !scopes.has(scope)) ?? null);

/** Throws forbidden if the caller's key does not have the scope. */
export function requireScope(caller: Scoped, scope: string): void {
  if (hasScope(caller, scope)) return;
  const message = `This API key lacks the scope '${scope}'. Use a key that has this scope, or a key created without a list of scopes.`;
  throw new GatewayError('forbidden', 'missing_scope', message);
}

/**
 * Whether the caller can act in workspaces other than its own, and create keys there. Only keys of the organisation can:
 * the key of a user belongs to one workspace, also that of an owner (decision 25).
 */
export const reachesEveryWorkspace = ({ principal }: Acting): boolean => principal.type === 'organisation_key';

/**
 * Whether the caller administers what belongs to the organisation, such as users, workspaces and shared records: with a
 * key of the organisation, or as one of its owners and admins.
 */
export const actsForOrganisation = (caller: Acting): boolean =>
  reachesEveryWorkspace(caller) || ['owner', 'admin'].includes(caller.principal.organisationRole ?? '');

/** Refuses a caller who does not act for the organisation. `what` ends the sentence: `do this to prices`. Throws forbidden. */
export function requireOrganisation(caller: Acting, what: string): void {
  if (actsForOrganisation(caller)) return;
  const message = `Only an organisation key, or a key of an owner or admin, can ${what}. Use one of these, such as the first admin key.`;
  throw new GatewayError('forbidden', 'organisation_key_required', message);
}

/** Throws not_found for the ID of another organisation than that of this installation. */
export function refuseForeignOrganisation(wanted: unknown): void {
  if (wanted === undefined || wanted === organisationId) return;
  const message = `There is no organisation '${(wanted as string).slice(0, 100)}'. The ID of this organisation is '${organisationId}'.`;
  throw new GatewayError('not_found', 'organisation_not_found', message, { param: 'organisation_id' });
}

/**
 * Whether the caller can create, change and rotate the keys of a user. Such a key acts in the name of the user, who can be
 * an owner, so other users cannot.
 */
export const controlsKeysOf = (caller: Acting, userId: string): boolean =>
  reachesEveryWorkspace(caller) || (caller.principal.type === 'user' && caller.principal.id === userId);

/** Throws forbidden for the key of a user whose keys the caller does not control. `userId`: absent for other keys. */
export function refuseForeignKey(caller: Acting, userId: string | undefined): void {
  if (userId === undefined || controlsKeysOf(caller, userId)) return;
  throw new GatewayError(
    'forbidden',
    'key_of_other_user',
    'Only the user or an organisation key can create, change and rotate a key of a user.',
    { param: 'user_id' },
  );
}

/**
 * Refuses that a caller gives or takes away a role in a workspace that has more rights than their own. The caller must
 * be known to act in that workspace. Throws forbidden.
 */
export function refuseHigherWorkspaceRole({ scopes: held }: Scoped, role: WorkspaceRole): void {
  const needed = getRoleScopes(role);
  if (held === 'all' || (needed !== 'all' && needed.isSubsetOf(held))) return;
  throw higherRole(`The role '${role}' in a workspace has more rights than the caller of this request`);
}

/** The same for a role in the organisation. The caller must be known to act for the organisation. Throws forbidden. */
export function refuseHigherOrganisationRole(caller: Acting & Scoped, role: OrganisationRole): void {
  const isOwner = reachesEveryWorkspace(caller) || caller.principal.organisationRole === 'owner';
  if (role === 'member' || (caller.scopes === 'all' && (role === 'admin' || isOwner))) return;
  throw higherRole(`The role '${role}' has more rights than the caller of this request`);
}

const higherRole = (what: string): GatewayError =>
  new GatewayError(
    'forbidden',
    'higher_role',
    `${what}, who can therefore neither grant nor remove it. Choose a lower role, or ask someone with this role.`,
    { param: 'role' },
  );

/** The scopes, defaults, expiry and networks of a key. It cannot give another key more rights than these. */
export type KeyRights = Pick<Caller, 'principal' | 'scopes' | 'defaults' | 'expiresAtMs' | 'networks'>;

/** The rights of a key, as stored. */
type StoredRights = {
  type?: ApiKeyType;
  /** null: all scopes. */
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
function isFromMoreNetworks({ networks: lists }: KeyRights, wanted: StoredRights): boolean {
  const own = lists?.find(isOfKey);
  return own !== undefined && wanted.allowed_networks?.every((network) => own.contains(network)) !== true;
}

/** Whether a key belongs to the organisation, and the key of the request does not. */
const isOfOrganisation = (caller: KeyRights, { type }: StoredRights): boolean =>
  type === 'organisation-service' && !reachesEveryWorkspace(caller);

/**
 * Refuses a key that could do more than the key that creates or changes it. Throws forbidden with the parameter that
 * asks for too much.
 */
export function refuseMoreRights(maker: KeyRights, wanted: StoredRights): void {
  const { scopes, defaults } = wanted;
  if (isOfOrganisation(maker, wanted)) {
    const message = "Only an organisation key can create another one. Leave out 'type', or use an organisation key.";
    throw new GatewayError('forbidden', 'organisation_key_required', message, { param: 'type' });
  }
  refuseMoreScopes(maker, scopes);
  if (isFromMoreNetworks(maker, wanted)) {
    const message =
      'The key of this request can only be used from its allowed_networks. Keys that it creates or changes must have the same ' +
      'restriction. Choose allowed_networks within those of this key.';
    throw new GatewayError('forbidden', 'network_not_allowed', message, { param: 'allowed_networks' });
  }
  const isFixed = defaults.allow_config_override === false && (defaults.config_id ?? null) === maker.defaults.configId;
  if (maker.defaults.allowsConfigOverride || isFixed) return;
  const own =
    maker.defaults.configId === null ? 'no default config' : `the default config '${maker.defaults.configId}'`;
  throw new GatewayError(
    'forbidden',
    'config_override_not_allowed',
    `The config of this API key is fixed, so keys that it creates must have the same config. Set ${own} and ` +
      'allow_config_override: false.',
    { param: 'defaults' },
  );
}

/**
 * Refuses scopes for a key that the key of the request does not have. `param` is where the request has them. Throws
 * forbidden.
 */
export function refuseMoreScopes({ scopes }: Scoped, wanted: readonly string[] | null, param = 'scopes'): void {
  if (scopes === 'all') return;
  const missing = missingScopes({ scopes }, wanted);
  if (missing?.length === 0) return;
  const held = [...scopes].join(', ');
  const message =
    missing === null
      ? `A key without 'scopes' has all scopes, but the key of this request does not. Choose scopes from ${held}.`
      : `The key of this request does not have ${missing.join(', ')}, so it cannot grant this to another key. It has ${held}.`;
  throw new GatewayError('forbidden', 'insufficient_scope', message, { param });
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
    `Invalid '${at}[${index}]': unknown scope '${wanted[index]?.slice(0, 100)}'. ` +
      `Available scopes: ${[...known].toSorted().join(', ')}.`,
    { param: `${at}[${index}]` },
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
    `The key of this request expires at ${last}, and keys that it creates cannot expire later. Set 'expires_at' to that time or earlier.`,
    { param: 'expires_at' },
  );
}

/**
 * Refuses that a key revokes, changes or rotates (`what`) one that can do more than itself. Otherwise a stolen key
 * could lock its owner out, or become the more powerful one. Throws forbidden.
 */
export function refuseStronger(
  caller: KeyRights,
  key: StoredRights & { id: string },
  what: 'revoke' | 'change' | 'rotate',
): void {
  if (what !== 'revoke') refuseForeignKey(caller, key.user_id);
  const isScoped = missingScopes(caller, key.scopes)?.length === 0;
  const isFixed = caller.defaults.allowsConfigOverride || key.defaults.allow_config_override === false;
  if (isScoped && isFixed && !isOfOrganisation(caller, key) && !isFromMoreNetworks(caller, key)) return;
  throw new GatewayError(
    'forbidden',
    'insufficient_scope',
    `The key '${key.id}' has more rights than the key of this request, which therefore cannot ${what} it. Use a key with at least the same rights.`,
    { param: 'id' },
  );
}
