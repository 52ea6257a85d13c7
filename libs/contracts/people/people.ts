import { z } from 'zod';
import { scopesMax, ScopeText } from './api-keys.ts';
import { text } from '../scalars.ts';

/**
 * The role of a user in the organisation. Owners and admins have every right in every workspace; a member has those of
 * memberships.
 */
export const OrganisationRole = z.enum(['owner', 'admin', 'member']);
export type OrganisationRole = z.output<typeof OrganisationRole>;

/** A user's role in a workspace. The rights of each role: libs/http/roles.ts. */
export const WorkspaceRole = z.enum(['admin', 'manager', 'member', 'auditor']);
export type WorkspaceRole = z.output<typeof WorkspaceRole>;

/**
 * Stored as given, and compared without regard to the case of ASCII letters. Two spellings that look alike would be two
 * people.
 */
export const email = () =>
  text({ min: 3, max: 254 })
    .regex(/^[^\s@]+@[^\s@]+$/)
    .refine((address) => address === address.normalize('NFKC'), {
      error: 'expected an address in normal form (NFKC). Replace special characters with ordinary letters and digits',
    })
    .meta({ format: 'email', maxLength: 254 });
const personName = () => text({ max: 100 });
const recordName = () => text({ min: 1, max: 200 });

/** The maximum in one request that adds users to a workspace, or workspaces to an invited person. */
const membershipsMax = 100;

/** The fields of a user that can be changed. Users are created by accepting an invite. */
export const userFields = {
  role: OrganisationRole,
  first_name: personName(),
  last_name: personName(),
};

export const UserObject = z.object({
  id: z.string(),
  object: z.literal('user'),
  first_name: z.string(),
  last_name: z.string(),
  role: OrganisationRole,
  email: z.string(),
  created_at: z.string(),
  last_updated_at: z.string(),
  workspace_ids: z.array(z.string()),
});

/** Members of the body of POST /admin/users/invites. */
export const inviteFields = {
  email: email(),
  role: OrganisationRole.exclude(['owner']),
  workspaces: z
    .array(z.strictObject({ id: recordName(), role: WorkspaceRole }))
    .max(membershipsMax)
    .default([]),
  /** A key of the new user for each of the workspaces. It is shown once to the person who accepts. */
  workspace_api_key_details: z
    .strictObject({ name: recordName().optional(), scopes: z.array(ScopeText).min(1).max(scopesMax) })
    .nullish(),
};

export const InviteStatus = z.enum(['pending', 'cancelled', 'accepted', 'expired']);
export type InviteStatus = z.output<typeof InviteStatus>;

export const InviteObject = z.object({
  id: z.string(),
  object: z.literal('invite'),
  email: z.string(),
  role: OrganisationRole,
  workspaces: z.array(z.object({ id: z.string(), role: WorkspaceRole })),
  status: InviteStatus,
  invited_by: z.string(),
  created_at: z.string(),
  expires_at: z.string(),
  accepted_at: z.string().nullable(),
});

export const CancelledInvite = InviteObject.extend({ deleted: z.literal(true) });

/** The answer for a resent invite; `inviteLink` as Portkey spells it there. */
export const ResentInvite = InviteObject.extend({ invite_link: z.string(), inviteLink: z.string() });

/** Body of POST /admin/users/invites/accept. */
export const AcceptInviteRequest = z.strictObject({
  token: text({ min: 1, max: 200 }),
  first_name: personName().nullish(),
  last_name: personName().nullish(),
});

/** The new user, and the keys that the invite asked for, which are never shown again. */
export const AcceptedInvite = UserObject.extend({
  workspace_api_keys: z.array(z.object({ id: z.string(), key: z.string(), workspace_id: z.string() })),
});

export const MemberObject = z.object({
  id: z.string(),
  object: z.literal('workspace-user'),
  first_name: z.string(),
  last_name: z.string(),
  email: z.string(),
  org_role: OrganisationRole,
  role: WorkspaceRole,
  status: z.literal('active'),
  workspace_id: z.string(),
  scopes: z.array(z.string()),
  settings: z.null(),
  created_at: z.string(),
  last_updated_at: z.string(),
});

/** Body of POST /admin/workspaces/{id}/users. */
export const AddMembersRequest = z.strictObject({
  users: z
    .array(z.strictObject({ id: recordName(), role: WorkspaceRole }))
    .min(1)
    .max(membershipsMax),
});

export const ChangeMemberRequest = z.strictObject({ role: WorkspaceRole });

/** `users` of POST /admin/workspaces: IDs, whose users become members, or IDs with roles. */
export const firstMembers = () =>
  z
    .array(
      z.union([
        recordName().transform((id) => ({ id, role: 'member' as const })),
        z.strictObject({ id: recordName(), role: WorkspaceRole }),
      ]),
    )
    .max(membershipsMax);
