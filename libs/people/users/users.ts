import { sql, type Kysely } from 'kysely';
import {
  email,
  OrganisationRole,
  UserObject,
  userFields,
  type WorkspaceRole,
  type OrganisationRole as Role,
} from '#libs/contracts/people/people.ts';
import type { Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { erasureQuery, readErasure } from '../erase/erasure-query.ts';
import { readPerson, refuseHeldPerson } from '../erase/find-person.ts';
import { refuseHigherOrganisationRole } from '#libs/http/rights.ts';
import type { LiveUser } from '#libs/http/roles.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import type { ResourceEvent, ResourceRow } from '#libs/records/resource-row.ts';
import { createdKeysQuery, createdKeyStreams, findUserKeys, revokeCreatedKeys, revokeKeys } from './created-keys.ts';
import { createdKeyErrors, serviceKeysText } from '#libs/resources/kind-texts.ts';

/** Times in ISO 8601. */
export type Membership = { role: WorkspaceRole; created_at: string; updated_at: string };

export type UserData = {
  /** In its original spelling. It is unique among users, ignoring case. */
  email: string;
  first_name: string;
  last_name: string;
  role: Role;
  /** By workspace ID (decision 31). */
  workspaces: Record<string, Membership>;
  /** The identity provider's identifier for a user who was created by signing in. */
  subject?: string;
  /** Why a deleted user is to be erased, until that is done. */
  erasure?: { reason: string; event_id: string };
};

/**
 * Every command about people holds this lock. Such commands are rare, and their rules concern several records: e-mail
 * addresses are unique, there is always an owner, and the number of members is limited.
 */
export const peopleLock = 'people';

/** A person in the organisation. Users are created by accepting an invite; the first one is the owner. */
export const userKind = defineKind<typeof userFields, UserData, LiveUser>({
  noun: 'user',
  idPrefix: 'user_',
  area: 'users',
  texts: {
    update: {
      description:
        'Changes the name, or the role in the organisation. The keys of the user follow the new role from the next ' +
        'request on.',
      example: { role: 'admin' },
      errors: {
        last_owner: 'the organisation needs at least one owner',
        higher_role: 'the role has more rights than the key of the request',
      },
    },
    delete: {
      description: `Ends the memberships and revokes the keys of the user. The log keeps a record of all changes; with \`erase=true\` it no longer says who the person was. ${serviceKeysText}`,
      errors: {
        ...createdKeyErrors,
        last_owner: 'the organisation needs at least one owner',
        higher_role: 'the user has more rights than the key of the request',
        missing_required_parameter: '`erase` without `reason`',
        legal_hold: '`erase`, and data about the person is in a workspace under legal hold',
      },
    },
  },
  path: '/v1/admin/users',
  names: { one: 'user', many: 'users', tag: 'Users', about: 'The people of the organisation.' },
  owner: 'organisation',
  fields: userFields,
  creation: false,
  locks: [peopleLock],
  filters: {
    role: { schema: OrganisationRole, field: 'role', match: 'equal' },
    email: { schema: email(), where: isEmail },
  },

  async check({ role, ...names }, { caller, row, unit }) {
    if (role !== undefined && row !== null && role !== row.data.role) {
      refuseHigherOrganisationRole(caller, row.data.role);
      refuseHigherOrganisationRole(caller, role);
      await refuseLastOwner(unit, row);
    }
    return { data: role === undefined ? names : { ...names, role } };
  },

  removal: {
    query: { ...createdKeysQuery, ...erasureQuery },
    also: {
      streams: async ({ id: userId }, { db }, _workspaceId, query) => [
        ...(await findUserKeys(db, userId, null)),
        ...(await createdKeyStreams(db, { userId, workspaceId: null }, query)),
      ],
      async run(unit, user, { caller, locked, query }) {
        refuseHigherOrganisationRole(caller, user.data.role);
        await refuseLastOwner(unit, user);
        await revokeCreatedKeys(unit, { userId: user.id, workspaceId: null }, { caller, locked, query });
        await revokeKeys(unit, locked);
        const reason = readErasure(query);
        if (reason === null) return;
        await refuseHeldPerson(unit.tx, await readPerson(unit.tx, user.id));
        await unit.append(userModel, user.id, [{ type: 'user.erasure_requested', data: { reason } }]);
      },
    },
  },

  history: {
    events: {
      /** Requests with a token instead of a key (libs/people/facts/fact-log.ts). */
      request_refused: (data) => data,
      contents_read: (data) => data,
      guardrail_failed: (data) => data,
      erasure_requested: (data, { data: { reason }, eventId }: { data: { reason: string }; eventId: string }) => ({
        ...data,
        erasure: { reason, event_id: eventId },
      }),
      /** Events of any stream, by ID (libs/event-log/erase-events.ts). */
      events_erased: (data) => data,
      erased: ({ erasure: _done, ...data }) => data,
      workspace_joined: (data, { data: { workspace_id: id, role }, recordedAt }: MembershipEvent) => {
        const time = recordedAt.toISOString();
        return { ...data, workspaces: { ...data.workspaces, [id]: { role, created_at: time, updated_at: time } } };
      },
      workspace_role_changed: (data, { data: { workspace_id: id, role }, recordedAt }: MembershipEvent) => {
        const time = recordedAt.toISOString();
        const before = data.workspaces[id] ?? { created_at: time };
        return { ...data, workspaces: { ...data.workspaces, [id]: { ...before, role, updated_at: time } } };
      },
      workspace_left(data, { data: { workspace_id: id } }: MembershipEvent) {
        const { [id]: _left, ...workspaces } = data.workspaces;
        return { ...data, workspaces };
      },
    },
  },

  view: ({ data }) => ({
    first_name: data.first_name,
    last_name: data.last_name,
    role: data.role,
    email: data.email,
    // jsonb does not preserve the order of members.
    workspace_ids: Object.entries(data.workspaces)
      .toSorted(([, one], [, other]) => (one.created_at < other.created_at ? -1 : 1))
      .map(([id]) => id),
  }),
  viewSchema: UserObject,

  cached: {
    toEntry: ({ id, data: { email: address, role, workspaces } }) => ({
      id,
      email: address,
      role,
      memberships: new Map(Object.entries(workspaces).map(([workspaceId, member]) => [workspaceId, member.role])),
    }),
    moreLookups: ({ data: { email: address, subject } }, entry) => [
      [emailLookup(address), entry],
      ...(subject === undefined ? [] : [[subjectLookup(subject), entry] as const]),
    ],
  },
});

/**
 * The key under which the snapshot finds a user who signs in with a token. Only ASCII letters are lower-cased: in Unicode,
 * the Kelvin sign becomes a `k`, and that address could belong to a different person.
 */
export const emailLookup = (address: string): string =>
  `email:${address.replaceAll(/[A-Z]+/g, (letters) => letters.toLowerCase())}`;
export const subjectLookup = (subject: string): string => `subject:${subject}`;

type MembershipEvent = { data: { workspace_id: string; role: WorkspaceRole }; recordedAt: Date };

/** For code that changes users outside their own routes. */
export const userModel = resourceModel([userKind]);

/** The event that creates a user. `role` is the role in the organisation. */
export function userCreated(person: Omit<UserData, 'workspaces'>): ResourceEvent {
  return { type: 'user.created', data: { ...person, workspaces: {} } };
}

/** A condition on rows of `resource` that have this e-mail address. The collation lower-cases ASCII letters only. */
export function isEmail(address: string) {
  return sql`lower((data ->> 'email') collate "C") = lower(${address}::text collate "C")`;
}

/** The ID of the user with this e-mail address; null if there is none. */
export async function findUserByEmail(db: Kysely<Database>, address: string): Promise<string | null> {
  const { rows } = await sql<{ id: string }>`
    select id from resource where kind = 'user' and deleted_at is null and ${isEmail(address)}`.execute(db);
  return rows[0]?.id ?? null;
}

/** Throws quota_exceeded if the maximum number of users is reached. The caller must hold the people lock. */
export async function refuseTooManyUsers({ tx }: Pick<UnitOfWork, 'tx'>, usersMax: number): Promise<void> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from resource where kind = 'user' and deleted_at is null`.execute(tx);
  if ((rows[0]?.count ?? 0) < usersMax) return;
  const message = `The organisation already has ${usersMax} users, the maximum. Remove some, or raise SLUICE_USERS_MAX.`;
  throw new GatewayError('quota_exceeded', 'too_many_users', message);
}

/** Throws conflict for a change that would leave the organisation without an owner. The caller must hold the people lock. */
async function refuseLastOwner({ tx }: UnitOfWork, { id, data }: ResourceRow<UserData>): Promise<void> {
  if (data.role !== 'owner') return;
  const { rows } = await sql`
    select from resource where kind = 'user' and deleted_at is null and data ->> 'role' = 'owner' and id <> ${id}
    limit 1`.execute(tx);
  if (rows.length > 0) return;
  const message = `The user '${id}' is the only owner of the organisation. Make another user an owner first.`;
  throw new GatewayError('conflict', 'last_owner', message, { param: 'role' });
}
