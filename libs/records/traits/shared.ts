import { sql, type RawBuilder } from 'kysely';
import { organisationId } from '#libs/http/caller.ts';

/**
 * For a kind that belongs to workspaces: the organisation also has records, which workspaces can see and organisation keys
 * can change.
 */
export type Shared = {
  /** Which of the organisation's records a workspace sees, as a condition on rows of `resource`. Default: all. */
  with?(workspaceId: string): RawBuilder<unknown>;
  /**
   * Without `workspace_id`, callers that act for the organisation see the records of all workspaces and create records of
   * the organisation. If this is not set, they create those with `organisation_id`.
   */
  isDefault?: boolean;
  /** Workspaces do not see the organisation's records. */
  isHidden?: boolean;
};

type Owned = { owner?: 'workspace' | 'organisation' | 'itself'; shared?: Shared };

/** Whether each record belongs to a workspace or is shared by the organisation. */
export const isOfWorkspace = ({ owner = 'workspace' }: Owned): boolean => owner === 'workspace';

/**
 * An SQL condition for the records that a workspace sees: its own, and the organisation's if the kind has shared ones. null:
 * all.
 */
export function ownedBy({ shared }: Owned, workspaceId: string | null): RawBuilder<unknown> {
  if (workspaceId === null) return sql`true`;
  if (shared === undefined || shared.isHidden) return sql`workspace_id = ${workspaceId}`;
  const isSeen = shared.with?.(workspaceId) ?? sql`true`;
  return sql`(workspace_id = ${workspaceId} or (workspace_id = ${organisationId} and ${isSeen}))`;
}

/** The errors for changes that only the organisation can make. */
export function ownerErrors(kind: Owned): Record<string, string> {
  if (isOfWorkspace(kind) && !kind.shared) return {};
  const records = isOfWorkspace(kind) ? 'shared records' : 'these records';
  return { organisation_key_required: `only organisation keys and owners can change ${records}` };
}

/** Describes which records a key sees. */
export function describeVisible({ owner, shared }: Owned): string {
  if (owner === 'organisation') return 'Requires an organisation key or an owner.';
  if (owner === 'itself') return 'A key of a workspace sees its own workspace.';
  const records = `Workspace keys see the records of their workspace${shared && !shared.isHidden ? ' and those that the organisation shares with it' : ''}.`;
  return shared?.isDefault
    ? `${records} Organisation keys see all records; pass \`workspace_id\` to limit the list to one workspace.`
    : `${records} With an organisation key, pass \`workspace_id\` to select another workspace.`;
}
