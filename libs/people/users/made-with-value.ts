import { sql } from 'kysely';
import type { z } from 'zod';
import type { RotatedApiKey } from '#libs/contracts/people/api-keys.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import { organisationId } from '#libs/http/caller.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import { inviteModel, inviteStatus, type InviteRow } from '#libs/people/invites/invite-data.ts';

/** The maximum number of records of one kind in an answer. The invites are cancelled in one transaction. */
const listedMax = 100;

type Made = z.output<typeof RotatedApiKey>['made_with_previous'];
type Row = { id: string; workspace_id: string; label: string };

/**
 * Returns the records that were created with these values of a key: working keys, users who accepted its invites, and
 * pending invites. With `cancelling`, the returned invites are cancelled. Any others stay pending, but accepting one checks
 * the value again.
 */
export async function readMadeWith(
  deps: KindDeps,
  digests: readonly string[],
  cancelling: EventMetadata | null,
): Promise<Made> {
  const { db } = deps;
  const isMadeWith = sql`data -> 'made_with' ->> 'digest' = any(${digests}::text[]) and deleted_at is null`;
  const { rows: keys } = await sql<Row>`
    select id, workspace_id, data ->> 'name' as label from resource where kind = 'api_key' and ${isMadeWith}
      and coalesce((data ->> 'expires_at')::timestamptz > clock_timestamp(), true)
    order by created_at desc, id desc limit ${listedMax + 1}`.execute(db);
  const { rows: users } = await sql<Row>`
    select id, workspace_id, data ->> 'email' as label from resource where kind = 'user' and deleted_at is null
      and id in (select data ->> 'user_id' from resource where kind = 'invite' and ${isMadeWith})
    order by created_at desc, id desc limit ${listedMax + 1}`.execute(db);
  const { rows: invites } = await sql<Row>`
    select id, workspace_id, data ->> 'email' as label from resource where kind = 'invite' and ${isMadeWith}
      and not data ? 'accepted_at' and not data ? 'cancelled_at' and (data ->> 'expires_at')::timestamptz > clock_timestamp()
    order by created_at desc, id desc limit ${listedMax + 1}`.execute(db);
  const shown = invites.slice(0, listedMax);
  const ids = shown.map(({ id }) => id);
  if (cancelling !== null) await cancelInvites(deps, ids, cancelling);
  return {
    api_keys: keys.slice(0, listedMax).map(({ id, label, workspace_id }) => ({ id, name: label, workspace_id })),
    users: users.slice(0, listedMax).map(({ id, label }) => ({ id, email: label })),
    invites: shown.map(({ id, label }) => ({ id, email: label, cancelled: cancelling !== null })),
    has_more: [keys, users, invites].some(({ length }) => length > listedMax),
  };
}

async function cancelInvites(
  { eventLog }: Pick<KindDeps, 'eventLog'>,
  ids: readonly string[],
  metadata: EventMetadata,
): Promise<void> {
  if (ids.length === 0) return;
  await eventLog.transact({ workspaceId: organisationId, streams: ids, metadata }, async (unit) => {
    for (const id of ids) {
      const invite = (await unit.load(inviteModel, id)) as InviteRow | undefined;
      if (invite === undefined || inviteStatus(invite.data, unit.now.getTime()) !== 'pending') continue;
      await unit.append(inviteModel, id, [{ type: 'invite.cancelled', data: {} }]);
    }
  });
}
