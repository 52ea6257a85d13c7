import { createHash, randomBytes } from 'node:crypto';
import type { InviteStatus, OrganisationRole, WorkspaceRole } from '#libs/contracts/people.ts';
import type { ResourceRow } from './resource-row.ts';

/** Times in ISO 8601. */
export type InviteData = {
  email: string;
  role: OrganisationRole;
  /** By id. */
  workspaces: { id: string; role: WorkspaceRole }[];
  workspace_api_key_details: { name?: string | undefined; scopes: string[] } | null;
  /** SHA-256 of the token, hex. */
  token_sha256: string;
  /** The user or key that made it. */
  invited_by: string;
  expires_at: string;
  cancelled_at?: string;
  accepted_at?: string;
  /** Who accepted it. */
  user_id?: string;
};

export type InviteRow = ResourceRow<InviteData>;

/** A token of 256 random bits, so that nobody guesses one and SHA-256 is enough of a hash. */
export const createInviteToken = (): string => `inv_${randomBytes(32).toString('base64url')}`;

/** How a token is stored and found. */
export const inviteTokenDigest = (token: string): string => createHash('sha256').update(token).digest('hex');

/** `nowMs` is the database's clock. */
export function inviteStatus(data: InviteData, nowMs: number): InviteStatus {
  if (data.accepted_at !== undefined) return 'accepted';
  if (data.cancelled_at !== undefined) return 'cancelled';
  return Date.parse(data.expires_at) <= nowMs ? 'expired' : 'pending';
}
