import { sql } from 'kysely';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { FollowUp, StoreDeps } from '../kit.ts';

/** How records of a kind are created by POST. */
export type Creation<Data, Deps> = {
  /**
   * The maximum number of records in a workspace, and the variable that sets it, if one does. Absent: no limit, or `check`
   * applies one.
   */
  limit?: (deps: Deps) => { max: number; variable?: string };
  /**
   * A sentence about the part of the answer that is shown only once and how to get a new one. A repeated creation is refused
   * with this sentence.
   */
  shownOnce?: string;
  /** The changes that creating a record makes to other records, in the same transaction. The subject is the request body. */
  also?: FollowUp<Data, Record<string, unknown>, Deps>;
};

type CreatedKind = {
  noun: string;
  names: { one: string; many: string };
  creation?: false | Pick<Creation<never, never>, 'limit' | 'shownOnce'>;
};

/** Throws conflict (`too_many_records`) if the owner already has the maximum number of records of a kind. */
export async function refuseMoreRecords(
  { tx }: Pick<UnitOfWork, 'tx'>,
  { noun, names, creation }: CreatedKind,
  ownerId: string,
  deps: StoreDeps,
): Promise<void> {
  if (!creation || !creation.limit) return;
  const { max, variable } = creation.limit(deps as never);
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from resource
    where kind = ${noun} and workspace_id = ${ownerId} and deleted_at is null`.execute(tx);
  if ((rows[0]?.count ?? 0) < max) return;
  const owner = ownerId === organisationId ? 'The organisation' : 'This workspace';
  const setting = variable === undefined ? '' : ` (${variable})`;
  const message = `${owner} already has ${max} ${names.many}, the maximum${setting}. Delete some that are no longer used.`;
  throw new GatewayError('conflict', 'too_many_records', message);
}

/** Throws conflict for a repeated creation whose answer cannot be repeated, because part of it is shown only once. */
export function refuseReplay({ names, creation }: CreatedKind, record: object): void {
  if (!creation || creation.shownOnce === undefined) return;
  const message = `This request was executed before and created the ${names.one} ${(record as { id: string }).id}, ${creation.shownOnce}`;
  throw new GatewayError('conflict', 'idempotency_replay_unavailable', message);
}

export const creationErrors = ({ creation }: CreatedKind): Record<string, string> => ({
  ...(creation && creation.limit ? { too_many_records: 'the workspace has reached its limit of these records' } : {}),
  idempotency_key_reused: 'the `Idempotency-Key` was used with another body',
  ...(creation && creation.shownOnce !== undefined
    ? { idempotency_replay_unavailable: 'the original answer contained a value that is shown only once' }
    : {}),
});
