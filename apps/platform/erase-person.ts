import type { Kysely } from 'kysely';
import { eraseFromActivity } from '#libs/activity/erase-from-activity.ts';
import { renameUser } from '#libs/analytics/rollups/rename-user.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import { eraseEvents, erasureType, findEvents } from '#libs/event-log/erase-events.ts';
import { refoldStream } from '#libs/event-log/refold-stream.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { forgetResultsWith } from '#libs/event-log/idempotency.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { forgetCountersWith } from '#libs/limits/counter-store.ts';
import { findErasures, findPerson, refuseHeldPerson } from '#libs/people/erase/find-person.ts';
import { erasePersonalTexts } from '#libs/people/erase/personal-texts.ts';
import { userModel } from '#libs/people/users/users.ts';
import { eraseCallsOfUser, findWorkspacesWithCalls } from '#libs/request-log/write/erase-calls.ts';
import { inlineModels } from './models.ts';

/** How many events and rows of calls were changed. */
export type ErasureCounts = { events: number; calls: number };

/**
 * Erases what identifies a deleted user: e-mail addresses, names, the subject at the identity provider and network
 * addresses, from events, records, the audit log, and from the request log with its recorded bodies. Hashes stay valid.
 * Events of the user say what was erased, by whom and why. Can be repeated after an interruption. `onProgress` gets the
 * position in the log. Throws not_found for an unknown user, and conflict for one who was not deleted, or whose data is in
 * a workspace under legal hold.
 */
export async function erasePerson(
  db: Kysely<Database>,
  { userId, reason, metadata }: { userId: string; reason: string; metadata: EventMetadata },
  onProgress: (position: number) => void = () => {},
): Promise<ErasureCounts> {
  return await asSystem(async () => {
    const eventLog = createEventLog(db);
    const person = await findPerson(db, userId);
    await refuseHeldPerson(db, person, (workspaces) => findWorkspacesWithCalls(db, userId, workspaces));
    const eraseFromLog = async (isOwn: boolean): Promise<number> => {
      let events = 0;
      for (let after = 0; ;) {
        const { found, end } = await findEvents(db, person, after, isOwn);
        if (end === null) return events;
        const changes = found.flatMap((before) => {
          const erased = erasePersonalTexts(before, person);
          return erased === null ? [] : [{ erased, isInRow: erased.data !== before.data }];
        });
        for (const group of toGroups(changes)) {
          const erased = group.map((change) => change.erased);
          // Rows do not contain metadata.
          const folded = new Set(group.filter(({ isInRow }) => isInRow).map(({ erased: { streamId } }) => streamId));
          const streams = [userId, ...erased.map(({ streamId }) => streamId)];
          await eventLog.transact({ workspaceId: organisationId, streams, metadata }, async (unit) => {
            const remains = await eraseEvents(unit.tx, erased);
            await eraseFromActivity(unit.tx, erased);
            await unit.append(userModel, userId, [{ type: erasureType, data: { reason, events: remains } }]);
            for (const stream of folded) await refoldStream(unit.tx, inlineModels, stream);
          });
        }
        events += changes.length;
        onProgress((after = end));
      }
    };
    let events = await eraseFromLog(false);
    const calls = await eraseCallsOfUser(db, person);
    await renameUser(db, person);
    await forgetCountersWith(db, person.emails);
    await forgetResultsWith(db, person.emails);
    // Last, because a repeated erasure reads from them what to look for.
    events += await eraseFromLog(true);
    await eventLog.transact({ workspaceId: organisationId, streams: [userId], metadata }, (unit) =>
      unit.append(userModel, userId, [{ type: 'user.erased', data: { reason, events, calls } }]),
    );
    return { events, calls };
  });
}

type Change = { erased: PositionedEvent; isInRow: boolean };

/** Folding a batch of ten million lines again takes some seconds, and a transaction has one minute. */
const foldedAtOnce = 5;

/**
 * Divides changes into those of one transaction each. The record of an erasure names events of one workspace, so that an
 * export of that workspace can contain it.
 */
const toGroups = (changes: readonly Change[]): Change[][] =>
  Array.from(Map.groupBy(changes, ({ erased }) => erased.workspaceId).values()).flatMap(inTransactions);

function inTransactions(changes: readonly Change[]): Change[][] {
  const groups: Change[][] = [];
  let folded = new Set<string>();
  for (const change of changes) {
    if (change.isInRow) folded.add(change.erased.streamId);
    if (groups.length === 0 || folded.size > foldedAtOnce) {
      folded = new Set(change.isInRow ? [change.erased.streamId] : []);
      groups.push([]);
    }
    groups.at(-1)?.push(change);
  }
  return groups;
}

/** Erases the deleted users whose erasure was requested, except under legal hold. Returns how many were erased. */
export async function eraseRequested(db: Kysely<Database>): Promise<number> {
  let erased = 0;
  for (const { userId, reason, eventId } of await findErasures(db)) {
    const metadata: EventMetadata = { actor: { type: 'system', id: 'erasure' }, causation_id: eventId };
    try {
      await erasePerson(db, { userId, reason, metadata });
      erased += 1;
    } catch (error) {
      // It is tried again until the hold is lifted.
      if (!(error instanceof GatewayError && error.code === 'legal_hold')) throw error;
    }
  }
  return erased;
}
