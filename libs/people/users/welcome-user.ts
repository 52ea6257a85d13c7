import { sql } from 'kysely';
import type { WorkspaceRole } from '#libs/contracts/people/people.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { PeopleOptions } from '#libs/resources/define-kind.ts';
import { joinWorkspaces } from './members.ts';
import { findUserByEmail, isEmail, peopleLock, refuseTooManyUsers, userCreated, userModel } from './users.ts';

export type Newcomer = {
  email: string;
  /** The identity provider's identifier for the person; null if it is the e-mail address. */
  subject: string | null;
  workspaceId: string;
  role: WorkspaceRole;
};

const metadata = { actor: { type: 'system' as const, id: 'sign-in' } };

/**
 * Creates a user for a person who signs in for the first time, with a membership in one workspace. Any number of processes
 * can do so at the same time. Throws forbidden if another user has the address (`email_taken`) or the person was removed
 * (`user_removed`), and quota_exceeded.
 */
export async function welcomeUser(
  { eventLog, people }: { eventLog: EventLog; people: Pick<PeopleOptions, 'usersMax' | 'membersMax'> },
  { email, subject, workspaceId, role }: Newcomer,
): Promise<void> {
  const id = newId('user_');
  const command = { workspaceId: organisationId, streams: [peopleLock, id], metadata };
  await eventLog.transact(command, async (unit) => {
    const isPerson = subject === null ? isEmail(email) : sql`data ->> 'subject' = ${subject}`;
    const { rows } = await sql<{ deleted_at: Date | null }>`
      select deleted_at from resource where kind = 'user' and ${isPerson}
      order by deleted_at nulls first limit 1`.execute(unit.tx);
    // Another call with a token of the same person was faster.
    if (rows[0]?.deleted_at === null) return;
    if (rows[0]) throw wasRemoved();
    if ((await findUserByEmail(unit.tx, email)) !== null) throw emailTaken();
    await refuseTooManyUsers(unit, people.usersMax);
    const names = { first_name: '', last_name: '', role: 'member' as const };
    await unit.append(userModel, id, [userCreated({ email, ...names, ...(subject === null ? {} : { subject }) })]);
    await joinWorkspaces(unit, id, [{ id: workspaceId, role }], people);
    await announceAccessChange(unit);
  });
}

/**
 * The sign-in is not linked to that user: an identity provider that lets people enter any address would hand over the
 * account.
 */
const emailTaken = (): GatewayError =>
  new GatewayError(
    'forbidden',
    'email_taken',
    'The token is valid, but another user has the same e-mail address. To identify users by e-mail address, set SLUICE_JWT_CLAIM_USER to the claim in SLUICE_JWT_CLAIM_EMAIL.',
  );

const wasRemoved = (): GatewayError =>
  new GatewayError(
    'forbidden',
    'user_removed',
    'The token is valid, but its user was removed. Ask an admin for an invite.',
  );
