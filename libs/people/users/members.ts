import { sql, type Kysely } from 'kysely';
import type { Request } from 'express';
import { z } from 'zod';
import { listOf, ResourceListQuery } from '#libs/contracts/lists.ts';
import {
  AddMembersRequest,
  ChangeMemberRequest,
  email,
  MemberObject,
  WorkspaceRole,
} from '#libs/contracts/people/people.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem, rebind } from '#libs/database/workspace-binding.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { organisationId, type Caller } from '#libs/http/caller.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { actsForOrganisation, refuseHigherWorkspaceRole } from '#libs/http/rights.ts';
import { getRoleScopes } from '#libs/http/roles.ts';
import { scopes } from '#libs/contracts/people/api-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { FollowUp, PeopleOptions, KindDeps } from '#libs/resources/define-kind.ts';
import { findWorkspace, noSuchWorkspace } from '#libs/records/choose-workspace.ts';
import { pageOf } from '#libs/records/lists/list-page.ts';
import type { ResourceEvent, ResourceRow } from '#libs/records/resource-row.ts';
import { createdKeysQuery, createdKeyStreams, findUserKeys, revokeCreatedKeys, revokeKeys } from './created-keys.ts';
import { isEmail, peopleLock, userModel, type UserData } from './users.ts';
import { createdKeyErrors, memberErrors, serviceKeysText } from '#libs/resources/kind-texts.ts';

type UserRow = ResourceRow<UserData>;
type Wanted = { id: string; role: WorkspaceRole };

/**
 * Makes users members of a workspace; if a user already is a member, changes the role. The caller must hold the locks of the
 * users' streams and the people lock. Throws not_found for a user who is unknown or shares no workspace with the caller,
 * forbidden for a role with more rights than the caller has, and quota_exceeded.
 */
export async function addMembers(
  unit: UnitOfWork,
  workspaceId: string,
  wanted: readonly Wanted[],
  { caller, people }: { caller: Caller; people: PeopleOptions },
): Promise<void> {
  if ((await findWorkspace(unit.tx, workspaceId)) === null) throw noSuchWorkspace(workspaceId, 'workspaceId');
  for (const { id, role } of new Map(wanted.map((user) => [user.id, user])).values()) {
    const row = (await unit.load(userModel, id)) as UserRow | undefined;
    if (!row || row.deleted_at || !(await knows(unit, caller, row))) throw noKnownUser(id, caller);
    await append(unit, id, roleEvents(row, workspaceId, role, caller));
  }
  await refuseTooManyMembers(unit, workspaceId, people.membersMax);
}

/**
 * Whether a caller is allowed to know that a user exists and to see the e-mail address: callers that act for the
 * organisation or are in a workspace with the user. Anyone else who came to know an ID could otherwise learn the address by
 * adding the user.
 */
async function knows({ tx }: UnitOfWork, caller: Caller, { data }: UserRow): Promise<boolean> {
  if (actsForOrganisation(caller) || data.workspaces[caller.workspaceId] !== undefined) return true;
  const { principal } = caller;
  if (principal.type !== 'user') return false;
  const { rows } = await sql<Pick<UserRow, 'data'>>`
    select data from resource where kind = 'user' and id = ${principal.id} and deleted_at is null`.execute(tx);
  return Object.keys(rows[0]?.data.workspaces ?? {}).some((shared) => data.workspaces[shared] !== undefined);
}

/** The events that give a user a role in a workspace; none if the user already has that role. Throws forbidden. */
function roleEvents(row: UserRow, workspaceId: string, role: WorkspaceRole, caller: Caller): ResourceEvent[] {
  const before = row.data.workspaces[workspaceId];
  if (before?.role === role) return [];
  if (before) refuseHigherWorkspaceRole(caller, before.role);
  refuseHigherWorkspaceRole(caller, role);
  return [roleEvent(before ? 'workspace_role_changed' : 'workspace_joined', workspaceId, role)];
}

const roleEvent = (verb: string, workspaceId: string, role: WorkspaceRole): ResourceEvent => ({
  type: `user.${verb}`,
  data: { workspace_id: workspaceId, role },
});

/**
 * Makes a user a member of the invite's workspaces in which the user is not a member yet. The caller must hold the locks.
 */
export async function joinWorkspaces(
  unit: UnitOfWork,
  userId: string,
  wanted: readonly Wanted[],
  people: Pick<PeopleOptions, 'membersMax'>,
) {
  const row = (await unit.load(userModel, userId)) as UserRow | undefined;
  const joined = wanted.filter(({ id }) => row?.data.workspaces[id] === undefined);
  await append(
    unit,
    userId,
    joined.map(({ id, role }) => roleEvent('workspace_joined', id, role)),
  );
  for (const { id } of joined) await refuseTooManyMembers(unit, id, people.membersMax);
}

/** Ends the memberships in a workspace when it is deleted. */
export const endOfMemberships: FollowUp<object, { id: string }> = {
  streams: ({ id }, { db }) => memberIds(db, id),
  async run(unit, { id: workspaceId }, { locked }) {
    const members = await memberIds(unit.tx, workspaceId);
    if (members.some((id) => !locked.includes(id))) {
      const message = 'A member was added to the workspace at the same time. Delete the workspace again.';
      throw new GatewayError('conflict', 'members_changed', message);
    }
    for (const id of members) await unit.append(userModel, id, [leftEvent(workspaceId)]);
  },
};

const leftEvent = (workspaceId: string): ResourceEvent => ({
  type: 'user.workspace_left',
  data: { workspace_id: workspaceId },
});

async function memberIds(db: Kysely<Database>, workspaceId: string): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`select id from resource where ${isMember(workspaceId)}`.execute(db);
  return rows.map(({ id }) => id);
}

async function append(unit: UnitOfWork, id: string, events: ResourceEvent[]): Promise<void> {
  if (events.length > 0) await unit.append(userModel, id, events);
}

async function refuseTooManyMembers({ tx }: UnitOfWork, workspaceId: string, membersMax: number): Promise<void> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from resource where ${isMember(workspaceId)}`.execute(tx);
  if ((rows[0]?.count ?? 0) <= membersMax) return;
  const message = `The workspace can have at most ${membersMax} members. Remove some, or raise SLUICE_MEMBERS_MAX.`;
  throw new GatewayError('quota_exceeded', 'too_many_members', message, { param: 'users' });
}

const isMember = (workspaceId: string) =>
  sql`kind = 'user' and deleted_at is null and data -> 'workspaces' ? ${workspaceId}`;

/**
 * This is the same error as for an ID that does not exist, because not every key of a workspace is allowed to know who else
 * is in the organisation.
 */
const noMember = (id: string): GatewayError =>
  new GatewayError('not_found', 'member_not_found', `This workspace has no member '${id.slice(0, 100)}'.`, {
    param: 'userId',
  });

/** The error is the same for an ID that does not exist and for a user that the caller does not know. */
function noKnownUser(id: string, caller: Caller): GatewayError {
  const named = `There is no user '${id.slice(0, 100)}'`;
  const message = actsForOrganisation(caller)
    ? `${named}. GET /v1/admin/users lists them.`
    : `${named} in one of your workspaces. Ask an admin of the organisation to add or invite the person.`;
  return new GatewayError('not_found', 'user_not_found', message, { param: 'users' });
}

/** A user as a member of a workspace. */
function viewOfMember({ id, data }: UserRow, workspaceId: string): z.output<typeof MemberObject> {
  const member = data.workspaces[workspaceId];
  if (!member) throw noMember(id);
  const held = getRoleScopes(member.role);
  return {
    id,
    object: 'workspace-user',
    first_name: data.first_name,
    last_name: data.last_name,
    email: data.email,
    org_role: data.role,
    role: member.role,
    status: 'active',
    workspace_id: workspaceId,
    scopes: held === 'all' ? [...scopes] : [...held],
    settings: null,
    created_at: member.created_at,
    last_updated_at: member.updated_at,
  };
}

type MemberFilters = { role?: string | undefined; email?: string | undefined };

/** Members of a workspace, latest joined first: up to `limit + 1`, and the total number. */
async function listMembers(
  db: Kysely<Database>,
  workspaceId: string,
  { role, email: address }: MemberFilters,
  { after, skip, limit }: { after: string | null; skip: number; limit: number },
): Promise<{ members: z.output<typeof MemberObject>[]; total: number }> {
  const joined = sql`data -> 'workspaces' -> ${workspaceId}::text ->> 'created_at'`;
  const conditions = [isMember(workspaceId)];
  if (role !== undefined) conditions.push(sql`data -> 'workspaces' -> ${workspaceId}::text ->> 'role' = ${role}`);
  if (address !== undefined) conditions.push(isEmail(address));
  const listed = sql.join(conditions, sql` and `);
  const from =
    after === null ? sql`true` : sql`(${joined}, id) < (select ${joined}, id from resource where id = ${after})`;
  // Users are records of the organisation.
  const [{ rows }, counted] = await asSystem(async () => [
    await sql<UserRow>`
      select * from resource where ${listed} and ${from}
      order by ${joined} desc, id desc limit ${limit + 1} offset ${skip}`.execute(db),
    await sql<{ total: number }>`select count(*)::int as total from resource where ${listed}`.execute(db),
  ]);
  return { members: rows.map((row) => viewOfMember(row, workspaceId)), total: counted.rows[0]?.total ?? 0 };
}

/** The `users` member of the answer to GET of a workspace: its newest members. The list of members has all of them. */
export async function newestMembers(db: Kysely<Database>, workspaceId: string): Promise<object[]> {
  const { members } = await listMembers(db, workspaceId, {}, { after: null, skip: 0, limit: 100 });
  return members.slice(0, 100);
}

/** `role`: before the change. `locked`: the streams that it requested in addition to the user's. */
type Place = { row: UserRow; role: WorkspaceRole; workspaceId: string; caller: Caller; locked: readonly string[] };

const path = '/v1/admin/workspaces/:workspaceId/users';
const one = { params: z.object({ workspaceId: z.string(), userId: z.string() }) };
const all = { params: z.object({ workspaceId: z.string() }) };
const MemberList = listOf(MemberObject).extend({ total: z.int() });

/**
 * The routes for the members of a workspace. They can be used by its keys and users, and by callers that act for the
 * organisation.
 */
export function memberRoutes(deps: KindDeps): Route[] {
  const kit = createMemberKit(deps);
  return [...addRoutes(kit), ...readRoutes(kit), ...changeRoutes(kit)];
}

const read = { tag: 'Members', scope: 'members.read' as const };
const write = { tag: 'Members', scope: 'members.write' as const };
const answer = { 200: { description: 'The member.', schema: MemberObject } };

type Kit = ReturnType<typeof createMemberKit>;

/** What the routes of members share. */
function createMemberKit(deps: KindDeps) {
  const { db, eventLog, snapshot, people } = deps;

  const workspaceOf = async (request: Request): Promise<string> => {
    const { workspaceId: wanted = '' } = request.params as Record<string, string>;
    const caller = getCaller(request);
    const isOfOrganisation = actsForOrganisation(caller);
    const id = await (isOfOrganisation ? asSystem(() => findWorkspace(db, wanted)) : findWorkspace(db, wanted));
    if (id === null || (id !== caller.workspaceId && !isOfOrganisation)) throw noSuchWorkspace(wanted, 'workspaceId');
    // Members are users, and users belong to the organisation, because a user can be a member of several workspaces.
    rebind(null);
    return id;
  };

  const userOf = async (source: Kysely<Database>, id: string): Promise<UserRow> => {
    const { rows } = await sql<UserRow>`
      select * from resource where kind = 'user' and id = ${id} and deleted_at is null`.execute(source);
    if (rows[0]) return rows[0];
    throw noMember(id);
  };

  /** Runs `work` on locked users, then makes the change visible to every process. */
  const change = async (
    request: Request,
    streams: readonly string[],
    work: (unit: UnitOfWork, caller: Caller) => Promise<void>,
  ): Promise<void> => {
    const command = {
      workspaceId: organisationId,
      streams: [peopleLock, ...streams],
      metadata: toEventMetadata(request),
    };
    await eventLog.transact(command, async (unit) => {
      await work(unit, getCaller(request));
      await announceAccessChange(unit);
    });
    await snapshot.catchUp();
  };

  /** Like `change`, for one member, and with the further streams that `more` returns. */
  const changeMember = async (
    request: Request,
    more: (workspaceId: string, userId: string) => Promise<readonly string[]>,
    work: (unit: UnitOfWork, place: Place) => Promise<void>,
  ): Promise<{ workspaceId: string; userId: string }> => {
    const workspaceId = await workspaceOf(request);
    const { userId = '' } = request.params as Record<string, string>;
    viewOfMember(await userOf(db, userId), workspaceId);
    const locked = await more(workspaceId, userId);
    await change(request, [userId, ...locked], async (unit, caller) => {
      const row = await userOf(unit.tx, userId);
      const { role } = viewOfMember(row, workspaceId);
      await work(unit, { row, role, workspaceId, caller, locked });
    });
    return { workspaceId, userId };
  };

  return { db, people, workspaceOf, userOf, change, changeMember };
}

const addRoutes = ({ db, people, workspaceOf, userOf, change }: Kit): Route[] => [
  {
    method: 'POST',
    path,
    operationId: 'addMembers',
    summary: 'Make users members of a workspace, or change their roles',
    description:
      'Adds up to 100 users, all or none. Existing users are added immediately, and other people are invited.',
    example: { users: [{ id: 'user_abc', role: 'member' }] },
    errors: {
      workspace_not_found: 'the key sees no such workspace',
      user_not_found: 'no user with this ID shares a workspace with you',
      members_changed: 'the members were changed at the same time: send the request again',
      ...memberErrors,
    },
    ...write,
    responses: { 200: { description: 'The members in the request.', schema: MemberList } },
    ...withInput({ ...all, body: AddMembersRequest }, async ({ body: { users } }, request, response) => {
      const workspaceId = await workspaceOf(request);
      const ids = [...new Set(users.map(({ id }) => id))];
      await change(request, ids, (unit, caller) => addMembers(unit, workspaceId, users, { caller, people }));
      const members = await Promise.all(ids.map(async (id) => viewOfMember(await userOf(db, id), workspaceId)));
      response.json({ ...toListResponse(members, members.length), total: members.length });
    }),
  },
];

const readRoutes = ({ db, workspaceOf, userOf }: Kit): Route[] => [
  {
    method: 'GET',
    path,
    operationId: 'listMembers',
    summary: 'List the members of a workspace, newest first',
    description: 'Includes the role and scopes of each member in this workspace.',
    ...read,
    responses: { 200: { description: 'A page of members.', schema: MemberList } },
    ...withInput(
      { ...all, query: ResourceListQuery.extend({ role: WorkspaceRole.optional(), email: email().optional() }) },
      async ({ query }, request, response) => {
        const page = pageOf(query);
        const { members, total } = await listMembers(db, await workspaceOf(request), query, page);
        response.json({ ...toListResponse(members, page.limit), total });
      },
    ),
  },
  {
    method: 'GET',
    path: `${path}/:userId`,
    operationId: 'retrieveMember',
    summary: 'Retrieve a member of a workspace',
    description: 'Includes the role and scopes of the member in this workspace.',
    errors: { member_not_found: 'the user is not a member' },
    ...read,
    responses: answer,
    ...withInput(one, async ({ params }, request, response) => {
      const workspaceId = await workspaceOf(request);
      response.json(viewOfMember(await userOf(db, params.userId), workspaceId));
    }),
  },
];

const changeRoutes = ({ db, userOf, changeMember }: Kit): Route[] => [
  {
    method: 'PUT',
    path: `${path}/:userId`,
    operationId: 'updateMember',
    summary: 'Change the role of a member',
    description: 'The keys of the user follow the new role from the next request on.',
    example: { role: 'manager' },
    errors: { member_not_found: 'the user is not a member', ...memberErrors },
    ...write,
    responses: answer,
    ...withInput({ ...one, body: ChangeMemberRequest }, async ({ body: { role } }, request, response) => {
      const none = (): Promise<string[]> => Promise.resolve([]);
      const { workspaceId, userId } = await changeMember(request, none, (unit, { row, workspaceId: id, caller }) =>
        append(unit, row.id, roleEvents(row, id, role, caller)),
      );
      response.json(viewOfMember(await userOf(db, userId), workspaceId));
    }),
  },
  {
    method: 'DELETE',
    path: `${path}/:userId`,
    operationId: 'removeMember',
    summary: 'Remove a member from a workspace, and revoke the keys that the user has there',
    description: `Revokes the keys that the user has in the workspace. ${serviceKeysText}`,
    errors: {
      ...createdKeyErrors,
      member_not_found: 'the user is not a member',
      higher_role: 'the member has more rights than the key of the request',
    },
    ...write,
    responses: {
      200: {
        description: 'The user is no longer a member.',
        schema: z.object({
          id: z.string(),
          object: z.literal('workspace-user'),
          workspace_id: z.string(),
          deleted: z.literal(true),
        }),
      },
    },
    ...withInput({ ...one, query: z.object(createdKeysQuery) }, async ({ query }, request, response) => {
      let ownKeys: readonly string[] = [];
      const streams = async (workspaceId: string, userId: string): Promise<string[]> => {
        ownKeys = await findUserKeys(db, userId, workspaceId);
        return [...ownKeys, ...(await createdKeyStreams(db, { userId, workspaceId }, query))];
      };
      const { workspaceId, userId } = await changeMember(request, streams, async (unit, place) => {
        const creator = { userId: place.row.id, workspaceId: place.workspaceId };
        refuseHigherWorkspaceRole(place.caller, place.role);
        await append(unit, place.row.id, [leftEvent(place.workspaceId)]);
        await revokeCreatedKeys(unit, creator, { ...place, query });
        // An owner or admin of the organisation needs no membership, and keeps the keys.
        if (place.row.data.role === 'member') await revokeKeys(unit, ownKeys);
      });
      response.json({ id: userId, object: 'workspace-user', workspace_id: workspaceId, deleted: true });
    }),
  },
];
