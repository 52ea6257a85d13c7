import { scopes } from '#libs/contracts/people/api-keys.ts';
import type { OrganisationRole, WorkspaceRole } from '#libs/contracts/people/people.ts';
import { relayAreas } from '#libs/providers/provider.ts';

/** A user as every process keeps it in memory. */
export type LiveUser = {
  readonly id: string;
  readonly email: string;
  readonly role: OrganisationRole;
  /** By workspace. */
  readonly memberships: ReadonlyMap<string, WorkspaceRole>;
};

const liveAreas = ['chat', 'completions', 'embeddings', ...relayAreas];
const callAreas = [...liveAreas, 'models', 'batches', 'files', 'fine_tuning'];
const liveScopes: ReadonlySet<string> = new Set(liveAreas.map((area) => `${area}.write`));

/** Whether a scope is needed to change records, files or batches. The scope of live calls is not. */
export const changesRecords = (scope: string): boolean => scope.endsWith('.write') && !liveScopes.has(scope);

type Right = 'none' | 'read' | 'write';

/**
 * The rights of a role in its workspace, by area; `write` includes reading. An admin can do everything there. Actions that
 * belong to the organisation (users, invites, creating workspaces) require an organisation key, or an owner or admin,
 * whatever this table says.
 */
const rights: Record<Exclude<WorkspaceRole, 'admin'>, { others: Right; areas: Record<string, Right> }> = {
  // Administers the workspace, but cannot set the guardrails that no call can leave out: they belong to `workspaces`.
  // Recorded prompts and answers are for admins, and for keys that they give `bodies.read`.
  manager: { others: 'write', areas: { users: 'none', workspaces: 'read', audit: 'read', bodies: 'none' } },
  // Uses the workspace: makes calls and batches, writes prompts, and sees where calls go and what they cost.
  member: {
    others: 'read',
    areas: {
      ...Object.fromEntries(callAreas.map((area) => [area, 'write'])),
      users: 'none',
      api_keys: 'none',
      audit: 'none',
      bodies: 'none',
      prompts: 'write',
      collections: 'write',
      labels: 'write',
      feedback: 'write',
    },
  },
  // Reads everything, also recorded prompts and answers, and changes nothing. It makes no calls either.
  auditor: { others: 'read', areas: {} },
};

const computed = new Map<WorkspaceRole, { known: number; held: ReadonlySet<string> }>();

/** Returns the scopes that a role gives in a workspace. They are computed again when a kind of record has added scopes. */
export function getRoleScopes(role: WorkspaceRole): ReadonlySet<string> | 'all' {
  if (role === 'admin') return 'all';
  const before = computed.get(role);
  if (before?.known === scopes.length) return before.held;
  const { others, areas } = rights[role];
  const allows = (scope: string): boolean => {
    const [area = '', access] = scope.split('.');
    const right = areas[area] ?? others;
    return right === 'write' || (right === 'read' && access === 'read');
  };
  const held = new Set(scopes.filter(allows));
  computed.set(role, { known: scopes.length, held });
  return held;
}

/** Returns the scopes that a user with this role has when using a key with these scopes: those that both allow. */
export function scopesWithin(role: WorkspaceRole, held: ReadonlySet<string> | 'all'): ReadonlySet<string> | 'all' {
  const given = getRoleScopes(role);
  if (given === 'all') return held;
  return held === 'all' ? given : given.intersection(held);
}

/** Returns a user's role in a workspace. Owners and admins of the organisation are admins of all. null: no access. */
export function getWorkspaceRole({ role, memberships }: LiveUser, workspaceId: string): WorkspaceRole | null {
  return role === 'member' ? (memberships.get(workspaceId) ?? null) : 'admin';
}
