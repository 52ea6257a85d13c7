import { sql, type Kysely } from 'kysely';
import type { Request } from 'express';
import type { z } from 'zod';
import type { AcceptInviteRequest } from '#libs/contracts/people/people.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { organisationId, type Caller, type Principal } from '#libs/http/caller.ts';
import { getClientAddress } from '#libs/http/client-address.ts';
import { getContext } from '#libs/http/request-context.ts';
import { actsForOrganisation, controlsKeysOf, hasScope } from '#libs/http/rights.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { createGatewayKey, hashKey } from '#libs/identity/gateway-key.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { worksStill, type ApiKeyData } from '#libs/resources/api-keys/api-key-data.ts';
import { apiKeyKind, apiKeyModel } from '#libs/resources/api-keys/api-keys.ts';
import { refuseMoreRecords } from '#libs/records/traits/creation.ts';
import { findWorkspace } from '#libs/records/choose-workspace.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import {
  inviteModel,
  inviteStatus,
  inviteTokenDigest,
  refuseHigherRights,
  type InviteData,
  type InviteRow,
} from './invite-data.ts';
import { joinWorkspaces } from '#libs/people/users/members.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { viewOf } from '#libs/records/resource-view.ts';
import {
  findUserByEmail,
  peopleLock,
  refuseTooManyUsers,
  userCreated,
  userModel,
  userKind,
  type UserData,
} from '#libs/people/users/users.ts';

type Names = z.output<typeof AcceptInviteRequest>;
type NewKey = { id: string; workspaceId: string; key: Secret };

/** How many times to try again if a user with the invited address appears or is removed between two statements. */
const triesMax = 3;

/**
 * Makes the invited person a user of the organisation with the memberships and keys of the invite. An existing user gets
 * only the memberships and keys. Returns the public form of the user, and the keys. Throws not_found for an unknown token;
 * conflict for an invite that is accepted, cancelled or expired, or whose inviter has left, which cancels it; rate_limited
 * after too many wrong tokens; and quota_exceeded.
 */
export async function acceptInvite(deps: KindDeps, request: Request, { token, ...names }: Names): Promise<object> {
  const { db, eventLog, snapshot } = deps;
  const forgive = deps.people.slowGuesses(request);
  const digest = inviteTokenDigest(token);
  const found = await findInvite(db, digest);
  if (found === null) throw unknownToken();
  forgive();
  for (let tries = 1; tries <= triesMax; tries += 1) {
    const existing = await findUserByEmail(db, found.data.email);
    const userId = existing ?? newId('user_');
    const keys = newKeys(found.data);
    const streams = [peopleLock, found.id, userId, ...keys.map(({ id }) => id)];
    const command = { workspaceId: organisationId, streams, metadata: getCallMetadata(request, userId) };
    const answer = await eventLog.transact(command, async (unit) => {
      const invite = (await unit.load(inviteModel, found.id)) as InviteRow | undefined;
      if (invite?.data.token_sha256 !== digest) throw unknownToken();
      refuseUnusable(unit, invite);
      const inviter = await findInviter(unit, invite.data);
      if (inviter === null) {
        await unit.append(inviteModel, found.id, [{ type: 'invite.cancelled', data: {} }]);
        return inviterGone();
      }
      if ((await findUserByEmail(unit.tx, invite.data.email)) !== existing) return null;
      if (existing !== null && keys.length > 0) refuseForeignKey(inviter, existing);
      if (existing === null) await createUser(unit, userId, invite, names, deps);
      const active = await activeWorkspaces(unit, invite.data);
      await joinWorkspaces(unit, userId, active, deps.people);
      const made = keys.filter(({ workspaceId }) => active.some(({ id }) => id === workspaceId));
      for (const { workspaceId } of made) await refuseMoreRecords(unit, apiKeyKind, workspaceId, deps);
      for (const key of made) await createKey(unit, key, userId, invite.data);
      await unit.append(inviteModel, found.id, [{ type: 'invite.accepted', data: { user_id: userId } }]);
      await announceAccessChange(unit);
      const user = (await unit.load(userModel, userId)) as ResourceRow<UserData>;
      const shown = made.map(({ id, workspaceId, key }) => ({ id, key: key.reveal(), workspace_id: workspaceId }));
      return { ...viewOf(userKind, user, 0), workspace_api_keys: shown };
    });
    if (answer === null) continue;
    if (answer instanceof GatewayError) throw answer;
    await snapshot.catchUp();
    return answer;
  }
  throw new GatewayError(
    'conflict',
    'user_changing',
    'The user with this address is being changed. Accept the invite again.',
  );
}

async function findInvite(db: Kysely<Database>, digest: string): Promise<InviteRow | null> {
  const { rows } = await sql<InviteRow>`
    select * from resource where kind = 'invite' and lookup = ${digest}`.execute(db);
  return rows[0] ?? null;
}

const unknownToken = (): GatewayError =>
  new GatewayError(
    'not_found',
    'invite_not_found',
    'No invite has this token. It is mistyped, or the invite was resent. Use the newest link.',
    { param: 'token' },
  );

const remedies = {
  accepted: 'was already accepted and works only once. Sign in as usual.',
  cancelled: 'was cancelled. Ask for a new one.',
  expired: 'has expired. Ask for a new one.',
};

function refuseUnusable({ now }: UnitOfWork, invite: InviteRow): void {
  const status = inviteStatus(invite.data, now.getTime());
  if (status === 'pending') return;
  throw new GatewayError('conflict', `invite_${status}`, `The invite ${remedies[status]}`, { param: 'token' });
}

const inviterGone = (): GatewayError =>
  new GatewayError(
    'conflict',
    'inviter_gone',
    'The key or user that created the invite no longer has the right to do so. Ask for a new invite.',
    { param: 'token' },
  );

/**
 * Refuses an invite with a key for a person who became a user in the meantime: the inviter could have the link, and the key
 * would act in the name of that user.
 */
function refuseForeignKey(inviter: Pick<Caller, 'principal'>, userId: string): void {
  if (controlsKeysOf(inviter, userId)) return;
  const message =
    'You are already a user, and only an organisation key can create keys for you. Ask for an invite without a key.';
  throw new GatewayError('conflict', 'key_of_other_user', message, { param: 'token' });
}

/**
 * Returns the inviter if the inviter still has the right to make this invite. Returns null if the inviter's key was revoked
 * or has expired, if the user was removed or has lost rights that the invite grants, or if the value of the key that made
 * the link was replaced. The link must not work then.
 */
async function findInviter({ tx, now }: UnitOfWork, invite: InviteData): Promise<Pick<Caller, 'principal'> | null> {
  const { invited_by: id, made_with: maker } = invite;
  const { rows } = await sql<{ kind: string; role: string | null }>`
    select kind, data ->> 'role' as role from resource
    where id = ${id} and deleted_at is null
      and coalesce((data ->> 'expires_at')::timestamptz > ${now}, true)`.execute(tx);
  const [found] = rows;
  if (found === undefined) return null;
  const principal: Principal =
    found.kind === 'user'
      ? { type: 'user', id, role: null, organisationRole: found.role ?? 'member' }
      : { type: 'organisation_key', id, role: null };
  let scopes: Caller['scopes'] = 'all';
  if (maker !== undefined) {
    const { rows: makers } = await sql<{ data: ApiKeyData | UserData }>`
      select data from resource where id = ${maker.id} and kind in ('api_key', 'user') and deleted_at is null`.execute(
      tx,
    );
    const data = makers[0]?.data;
    if (data === undefined) return null;
    if (maker.digest !== null) {
      const key = data as ApiKeyData;
      if (!worksStill(key, maker.digest, now.getTime())) return null;
      if (key.scopes !== null) scopes = new Set(key.scopes);
    }
  }
  const inviter = { principal, scopes };
  if (!actsForOrganisation(inviter) || !hasScope(inviter, 'users.write')) return null;
  try {
    refuseHigherRights(inviter, invite);
    return inviter;
  } catch (error) {
    if (error instanceof GatewayError) return null;
    throw error;
  }
}

async function createUser(
  unit: UnitOfWork,
  id: string,
  { data: { email, role } }: InviteRow,
  { first_name, last_name }: Omit<Names, 'token'>,
  { people }: KindDeps,
): Promise<void> {
  await refuseTooManyUsers(unit, people.usersMax);
  await unit.append(userModel, id, [
    userCreated({ email, role, first_name: first_name ?? '', last_name: last_name ?? '' }),
  ]);
}

async function activeWorkspaces({ tx }: UnitOfWork, { workspaces }: InviteData): Promise<InviteData['workspaces']> {
  const found = await Promise.all(workspaces.map(({ id }) => findWorkspace(tx, id)));
  return workspaces.filter((_, index) => found[index] !== null);
}

function newKeys({ workspaces, workspace_api_key_details: details }: InviteData): NewKey[] {
  if (details === null) return [];
  return workspaces.map(({ id: workspaceId }) => ({ id: newId('key_'), workspaceId, key: createGatewayKey() }));
}

async function createKey(
  unit: UnitOfWork,
  { id, workspaceId, key }: NewKey,
  userId: string,
  { email, workspace_api_key_details: details, made_with: maker }: InviteData,
): Promise<void> {
  const data: ApiKeyData = {
    name: details?.name ?? email,
    digest: hashKey(key.reveal()),
    last_four: key.lastFour(),
    scopes: details?.scopes ?? [],
    defaults: {},
    expires_at: null,
    type: 'workspace-user',
    user_id: userId,
    ...(details?.allowed_networks && { allowed_networks: details.allowed_networks }),
    ...(maker === undefined ? {} : { made_with: maker }),
  };
  await unit.append(apiKeyModel, id, [{ type: 'api_key.created', data }], workspaceId);
}

/** The request is not signed in: the accepting user is the one that the invite creates. */
function getCallMetadata(request: Request, userId: string): EventMetadata {
  const { requestId, traceId } = getContext(request);
  const address = getClientAddress(request);
  return {
    actor: { type: 'system', id: 'invite', principal: { type: 'user', id: userId, role: null } },
    request_id: requestId,
    trace_id: traceId,
    ...(address === null ? {} : { address }),
    method: request.method,
    path: request.path,
  };
}
