import { createHash, randomBytes } from 'node:crypto';
import type { InviteStatus, OrganisationRole, WorkspaceRole } from '#libs/contracts/people/people.ts';
import type { Caller } from '#libs/http/caller.ts';
import { refuseHigherOrganisationRole, refuseHigherWorkspaceRole, refuseMoreScopes } from '#libs/http/rights.ts';
import type { MadeWith } from '#libs/resources/api-keys/api-key-data.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';

/** Times in ISO 8601. */
export type InviteData = {
  email: string;
  role: OrganisationRole;
  /** By ID. */
  workspaces: { id: string; role: WorkspaceRole }[];
  workspace_api_key_details: { name?: string | undefined; scopes: string[]; allowed_networks?: string[] } | null;
  /** SHA-256 of the token, hex. */
  token_sha256: string;
  /** The user or key that made it. */
  invited_by: string;
  /** The value of the key that made the current link. Its holder knows the link. */
  made_with?: MadeWith;
  expires_at: string;
  cancelled_at?: string;
  accepted_at?: string;
  /** The user who accepted it. */
  user_id?: string;
};

export type InviteRow = ResourceRow<InviteData>;

export const inviteLookup = (data: InviteData): string => data.token_sha256;

export const inviteEvents = {
  resent: (
    data: InviteData,
    { data: link }: { data: Pick<InviteData, 'token_sha256' | 'expires_at' | 'made_with'> },
  ) => ({
    ...data,
    ...link,
  }),
  cancelled: (data: InviteData, { recordedAt }: { recordedAt: Date }) => ({
    ...data,
    cancelled_at: recordedAt.toISOString(),
  }),
  accepted: (data: InviteData, event: { data: { user_id: string }; recordedAt: Date }) => ({
    ...data,
    user_id: event.data.user_id,
    accepted_at: event.recordedAt.toISOString(),
  }),
};

/** For code that changes invites outside their own routes. */
export const inviteModel = resourceModel([{ noun: 'invite', history: { events: inviteEvents, lookup: inviteLookup } }]);

/** A token has 256 random bits, so it cannot be guessed and SHA-256 is a sufficient hash. */
export const createInviteToken = (): string => `inv_${randomBytes(32).toString('base64url')}`;

/** The form in which a token is stored and found. */
export const inviteTokenDigest = (token: string): string => createHash('sha256').update(token).digest('hex');

/** `nowMs` is the database's clock. */
export function inviteStatus(data: InviteData, nowMs: number): InviteStatus {
  if (data.accepted_at !== undefined) return 'accepted';
  if (data.cancelled_at !== undefined) return 'cancelled';
  return Date.parse(data.expires_at) <= nowMs ? 'expired' : 'pending';
}

type Rights = Pick<InviteData, 'role' | 'workspaces' | 'workspace_api_key_details'>;

/** Refuses an invite that grants more rights than the caller has. Throws forbidden. */
export function refuseHigherRights(caller: Pick<Caller, 'principal' | 'scopes'>, invite: Rights): void {
  const { role, workspaces, workspace_api_key_details: key } = invite;
  refuseHigherOrganisationRole(caller, role);
  for (const workspace of workspaces) refuseHigherWorkspaceRole(caller, workspace.role);
  if (key !== null) refuseMoreScopes(caller, key.scopes, 'workspace_api_key_details');
}
