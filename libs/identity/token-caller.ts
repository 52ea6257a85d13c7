import type { WorkspaceRole } from '#libs/contracts/people/people.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { effectiveCaller, type KeyDefaults } from './live-callers.ts';
import { scopesWithin, getWorkspaceRole, type LiveUser } from '../http/roles.ts';
import type { TokenIdentity } from './token-sign-in.ts';

/** The people and workspaces that a process has in memory. */
export type People = {
  /** By the subject of an earlier sign-in, by id, or by e-mail address regardless of case. */
  findUser(name: string): LiveUser | undefined;
  /** Returns the id of a workspace, found by id or slug. */
  findWorkspace(name: string): string | undefined;
  /** The id of the only workspace; undefined when there are several. */
  onlyWorkspace(): string | undefined;
  /** The settings that a workspace adds to the calls of its users; null for none. */
  defaultsOf(workspaceId: string): KeyDefaults | null;
};

/** Sorted from the fewest rights to the most. */
const roles: readonly WorkspaceRole[] = ['member', 'manager', 'admin'];

/**
 * Returns the caller of a token: its user, in the workspace that it names or in the user's only one, with the user's
 * rights there. The token's role and scopes can only reduce these. Throws forbidden: `unknown_user` for an unknown
 * person, `workspace_required` and `workspace_not_allowed`.
 */
export function tokenCaller(people: People, identity: TokenIdentity): Caller {
  const user = people.findUser(identity.user);
  if (user === undefined) {
    const message = `The token is valid, but the user '${identity.user.slice(0, 100)}' does not exist here. Ask an admin for an invite.`;
    throw new GatewayError('forbidden', 'unknown_user', message);
  }
  const [first, ...others] = user.memberships.keys();
  const own = first !== undefined && others.length === 0 ? first : null;
  const workspaceId = tokenWorkspace(people, identity, own);
  const held = getWorkspaceRole(user, workspaceId);
  if (held === null) throw notAllowed(identity.workspace ?? workspaceId);
  const claimed = claimedRole(identity) ?? held;
  const role = roles.indexOf(claimed) < roles.indexOf(held) ? claimed : held;
  const principal = Object.freeze({
    type: 'user' as const,
    id: user.id,
    role,
    // A user who signs in as a member of a workspace does not act for the organisation with that token.
    organisationRole: role === held ? user.role : 'member',
  });
  const scopes = scopesWithin(role, identity.scopes ?? 'all');
  // Taken from the user instead of the token, so that keys that the user creates do not expire with the token.
  const expiresAtMs = Number.POSITIVE_INFINITY;
  const base: Caller = { workspaceId, keyId: user.id, principal, scopes, defaults: noDefaults, expiresAtMs };
  const caller = effectiveCaller(base, people.defaultsOf(workspaceId), user) ?? base;
  return Object.freeze({ ...caller, principal, scopes });
}

const noDefaults: Caller['defaults'] = Object.freeze({ configId: null, allowsConfigOverride: true, metadata: null });

/**
 * Returns the workspace that a token names, otherwise `own`, otherwise the only one. Throws forbidden if there is none.
 */
export function tokenWorkspace(people: People, { workspace: wanted }: TokenIdentity, own: string | null): string {
  if (wanted !== null) {
    const id = people.findWorkspace(wanted);
    if (id === undefined) throw notAllowed(wanted);
    return id;
  }
  const id = own ?? people.onlyWorkspace();
  if (id !== undefined) return id;
  const message =
    'The token does not name a workspace, and its user has none or several. Add the workspace to the token as a claim (SLUICE_JWT_CLAIM_WORKSPACE).';
  throw new GatewayError('forbidden', 'workspace_required', message);
}

/** The highest role in a token. An unknown role counts as the lowest. null: the token has none. */
export function claimedRole({ roles: claimed }: TokenIdentity): WorkspaceRole | null {
  if (claimed === null) return null;
  return roles[Math.max(0, ...claimed.map((name) => roles.indexOf(name as WorkspaceRole)))] ?? 'member';
}

const notAllowed = (workspace: string): GatewayError =>
  new GatewayError(
    'forbidden',
    'workspace_not_allowed',
    `The token is valid, but its user has no access to a workspace '${workspace.slice(0, 100)}'. Ask an admin of the workspace for access.`,
  );
