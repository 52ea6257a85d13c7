import type { Request } from 'express';
import { sql } from 'kysely';
import {
  AcceptedInvite,
  AcceptInviteRequest,
  CancelledInvite,
  email,
  InviteObject,
  inviteFields,
  InviteStatus,
  OrganisationRole,
  ResentInvite,
} from '#libs/contracts/people/people.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Caller } from '#libs/http/caller.ts';
import { withInput } from '#libs/http/route.ts';
import { inheritedNetworks, refuseForeignKey, refuseMoreRights, refuseUnknownScopes } from '#libs/http/rights.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { acceptInvite } from './accept-invite.ts';
import { madeWith } from '#libs/resources/api-keys/api-key-data.ts';
import { findWorkspace, noSuchWorkspace } from '#libs/records/choose-workspace.ts';
import { defineKind, type PeopleOptions } from '#libs/resources/define-kind.ts';
import {
  createInviteToken,
  inviteEvents,
  inviteLookup,
  inviteStatus,
  inviteTokenDigest,
  refuseHigherRights,
  type InviteData,
  type InviteRow,
} from './invite-data.ts';
import { refuseLimited } from '#libs/resources/api-keys/refuse-limited.ts';
import { findUserByEmail, isEmail, peopleLock } from '#libs/people/users/users.ts';
import { keyErrors, memberErrors } from '#libs/resources/kind-texts.ts';

const endedInvite = {
  invite_not_found: 'no invite has this ID',
  invite_accepted: 'the invite was accepted',
  invite_cancelled: 'the invite was cancelled',
};

/**
 * An invitation to the organisation: a link with a token that works once and for a limited time. Only the SHA-256 of the
 * token is stored. A person who already has an account only gets the workspaces.
 */
export const inviteKind = defineKind<typeof inviteFields, InviteData>({
  noun: 'invite',
  idPrefix: 'invite_',
  area: 'users',
  texts: {
    create: {
      description: 'The answer contains a link with a token that works once and expires. Sluice does not send e-mail.',
      example: { email: 'ada@example.com', role: 'member', workspaces: [{ id: 'ws_abc', role: 'member' }] },
      errors: {
        invite_pending: 'the address already has a pending invite: resend that one',
        too_many_invites: 'too many invites are pending',
        higher_role: memberErrors.higher_role,
        insufficient_scope: keyErrors.insufficient_scope,
      },
    },
    list: { description: 'Does not include the tokens. Invites that were not accepted in time are `expired`.' },
  },
  path: '/v1/admin/users/invites',
  names: { one: 'invite', many: 'invites', tag: 'Invites', about: 'Links that add people as users.' },
  owner: 'organisation',
  fields: inviteFields,
  changes: false,
  // Cancelled invites are still listed.
  removal: false,
  locks: [peopleLock],
  history: { events: inviteEvents, lookup: inviteLookup },
  filters: {
    role: { schema: OrganisationRole, field: 'role', match: 'equal' },
    email: { schema: email(), where: isEmail },
    status: { schema: InviteStatus, where: hasStatus },
  },

  async check(input, { caller, unit, people, scopes }) {
    const { email: address = '', role = 'member', workspaces = [], workspace_api_key_details: details } = input;
    const key = details && { ...details, ...inheritedNetworks(caller) };
    refuseUnknownScopes(key?.scopes ?? [], scopes(), 'workspace_api_key_details.scopes');
    if (key) {
      await refuseStrongerKey({ unit, caller }, key);
      const userId = await findUserByEmail(unit.tx, address);
      if (userId !== null) refuseForeignKey(caller, userId);
    }
    if (key && workspaces.length === 0) {
      const message =
        "An API key belongs to a workspace. Add a workspace to 'workspaces', or leave out 'workspace_api_key_details'.";
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'workspace_api_key_details' });
    }
    const places = await Promise.all(
      workspaces.map(async ({ id: name, role: workspaceRole }) => {
        const id = await findWorkspace(unit.tx, name);
        if (id === null) throw noSuchWorkspace(name, 'workspaces');
        return { id, role: workspaceRole };
      }),
    );
    refuseHigherRights(caller, { role, workspaces: places, workspace_api_key_details: key ?? null });
    await refuseFurtherInvite(unit, address, people.invitesMax);
    const token = createInviteToken();
    const data: InviteData = {
      email: address,
      role,
      workspaces: places,
      workspace_api_key_details: key ?? null,
      invited_by: caller.principal.id,
      made_with: madeWith(caller),
      ...freshToken(token, unit, people),
    };
    return { data, shownOnce: { invite_link: people.inviteLink(token) } };
  },

  creation: { shownOnce: 'whose link was returned once. If it was not received, resend the invite.' },

  view: viewOfInvite,
  viewSchema: InviteObject,

  routes: (store, deps, kit) => [
    {
      method: 'DELETE',
      path: '/v1/admin/users/invites/:id',
      operationId: 'cancelInvite',
      summary: 'Cancel an invite',
      description: 'The link stops working.',
      errors: endedInvite,
      ...kit.write,
      responses: { 200: { description: 'The invite.', schema: CancelledInvite } },
      async handler(request, response) {
        const name = await kit.recordOf(request, {});
        const row = await store.change(name, kit.actorOf(request).metadata, (_unit, invite) => {
          if (invite.data.cancelled_at !== undefined) return [];
          refuseEnded(invite);
          return [{ type: 'invite.cancelled', data: {} }];
        });
        response.json({ ...(await kit.viewsOf([row]))[0], deleted: true });
      },
    },
    {
      method: 'POST',
      path: '/v1/admin/users/invites/:id/resend',
      operationId: 'resendInvite',
      summary: 'Create a new link for an invite',
      description:
        'The new link is only in this answer. The previous link stops working, and the expiry of the invite is extended.',
      errors: {
        ...endedInvite,
        higher_role: memberErrors.higher_role,
        insufficient_scope: keyErrors.insufficient_scope,
      },
      ...kit.write,
      responses: { 200: { description: 'The invite and its new link.', schema: ResentInvite } },
      async handler(request, response) {
        const { caller, metadata } = kit.actorOf(request);
        const token = createInviteToken();
        const row = await store.change(await kit.recordOf(request, {}), metadata, async (unit, invite) => {
          refuseEnded(invite);
          refuseHigherRights(caller, invite.data);
          // The caller who resends an invite gets the link, and with it the key.
          const { workspace_api_key_details: key } = invite.data;
          if (key !== null) await refuseStrongerKey({ unit, caller }, key);
          const link = { ...freshToken(token, unit, deps.people), made_with: madeWith(caller) };
          return [{ type: 'invite.resent', data: link }];
        });
        const link = deps.people.inviteLink(token);
        response.setHeader('cache-control', 'no-store');
        response.json({ ...(await kit.viewsOf([row]))[0], invite_link: link, inviteLink: link });
      },
    },
    {
      method: 'POST',
      path: '/v1/admin/users/invites/accept',
      operationId: 'acceptInvite',
      summary: 'Accept an invite with the token of its link; needs no key',
      description:
        'Creates the user, or adds the workspaces to an existing user with this address. Keys of the invite are only in ' +
        'this answer.',
      example: { token: 'inv_…', first_name: 'Ada', last_name: 'Lovelace' },
      errors: {
        ...endedInvite,
        invite_not_found: 'no invite has this token',
        invite_expired: 'the invite has expired: ask for a new one',
        too_many_users: 'the organisation has reached its limit of users',
        too_many_members: 'a workspace has reached its limit of members',
        user_changing: 'the user with this address is being changed: send the request again',
        inviter_gone: 'the person who created the invite no longer has permission to',
        key_of_other_user: 'the invite has keys, and the address belongs to an existing user',
      },
      tag: 'Invites',
      scope: 'public',
      responses: { 200: { description: 'The user, and the keys of the invite.', schema: AcceptedInvite } },
      ...withInput({ body: AcceptInviteRequest }, async ({ body }, request: Request, response) => {
        const answer = await acceptInvite(deps, request, body);
        response.setHeader('cache-control', 'no-store');
        response.json(answer);
      }),
    },
  ],
});

function viewOfInvite(row: InviteRow, nowMs: number): object {
  const { data, created_at } = row;
  return {
    email: data.email,
    role: data.role,
    workspaces: data.workspaces,
    status: inviteStatus(data, nowMs),
    invited_by: data.invited_by,
    created_at: created_at.toISOString(),
    expires_at: data.expires_at,
    accepted_at: data.accepted_at ?? null,
  };
}

function hasStatus(status: InviteStatus) {
  const isAccepted = sql`data ? 'accepted_at'`;
  const isCancelled = sql`data ? 'cancelled_at'`;
  const isExpired = sql`(data ->> 'expires_at')::timestamptz <= clock_timestamp()`;
  if (status === 'accepted') return isAccepted;
  if (status === 'cancelled') return isCancelled;
  const isOpen = sql`not ${isAccepted} and not ${isCancelled}`;
  return status === 'expired' ? sql`${isOpen} and ${isExpired}` : sql`${isOpen} and not ${isExpired}`;
}

const freshToken = (
  token: string,
  { now }: Pick<UnitOfWork, 'now'>,
  { inviteTtlMs }: PeopleOptions,
): Pick<InviteData, 'token_sha256' | 'expires_at'> => ({
  token_sha256: inviteTokenDigest(token),
  expires_at: new Date(now.getTime() + inviteTtlMs).toISOString(),
});

/**
 * The key of the accepting user has none of the limits of the inviter's key except its networks, so the inviter's key must
 * not have other limits.
 */
async function refuseStrongerKey(
  { unit, caller }: { unit: UnitOfWork; caller: Caller },
  key: NonNullable<InviteData['workspace_api_key_details']>,
): Promise<void> {
  refuseMoreRights(caller, { ...key, defaults: {} });
  await refuseLimited({ unit, caller }, 'invite a person with an API key');
  if (!Number.isFinite(caller.expiresAtMs)) return;
  const message = `The key of this request expires at ${new Date(caller.expiresAtMs).toISOString()}, but keys of an invite do not expire. Leave out 'workspace_api_key_details', or use a key that does not expire.`;
  throw new GatewayError('forbidden', 'outlives_its_maker', message, { param: 'workspace_api_key_details' });
}

function refuseEnded({ id, data }: InviteRow): void {
  if (data.accepted_at === undefined && data.cancelled_at === undefined) return;
  const what = data.accepted_at === undefined ? 'cancelled' : 'accepted';
  throw new GatewayError('conflict', `invite_${what}`, `The invite '${id}' was ${what}.`, { param: 'id' });
}

/** Allows one pending invite per address, up to a maximum in total. The caller must hold the people lock. */
async function refuseFurtherInvite({ tx }: UnitOfWork, address: string, invitesMax: number): Promise<void> {
  const { rows } = await sql<{ same: string | null; count: number }>`
    select min(id) filter (where ${isEmail(address)}) as same, count(*)::int as count
    from resource where kind = 'invite' and ${hasStatus('pending')}`.execute(tx);
  const { same = null, count = 0 } = rows[0] ?? {};
  if (same !== null) {
    const message = `The invite '${same}' for this address is still pending. Resend it, or cancel it first.`;
    throw new GatewayError('conflict', 'invite_pending', message, { param: 'email' });
  }
  if (count < invitesMax) return;
  const message = `${invitesMax} invites are already pending, the maximum. Cancel some, or raise SLUICE_INVITES_MAX.`;
  throw new GatewayError('quota_exceeded', 'too_many_invites', message);
}
