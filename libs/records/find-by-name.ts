import { sql, type RawBuilder } from 'kysely';
import { organisationId } from '#libs/http/caller.ts';
import type { LiveKind } from '#libs/records/live/live-resources.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/**
 * Returns an SQL expression for the ID of the record that `name` refers to; null if there is none. IDs are matched before
 * slugs, so that a record cannot be shadowed by another one that uses its ID as a slug. If several records have the slug,
 * those of a workspace take precedence over those of the organisation.
 *
 * `name`: a value, or an expression over other tables than `resource`. `seen`: a condition on the columns of `resource`,
 * without a table name, that the record must meet. `alias`: the column that names records of a kind without slugs.
 */
export function idOfName(
  kind: string,
  name: string | RawBuilder<string>,
  seen: RawBuilder<unknown>,
  { alias = sql`slug`, isDeleted = false }: { alias?: RawBuilder<unknown>; isDeleted?: boolean } = {},
): RawBuilder<string | null> {
  const record = sql`from resource as named
    where named.kind = ${kind} and (named.deleted_at is not null) = ${isDeleted} and ${seen}`;
  return sql`coalesce(
    (select named.id ${record} and named.id = ${name}),
    (select named.id ${record} and ${alias} = ${name}
      order by named.workspace_id = ${organisationId}, named.deleted_at desc, named.created_at desc, named.id limit 1))`;
}

/** A condition for `idOfName`: the records of a workspace and those of the organisation. */
export const ofWorkspaceOrShared = (workspaceId: string): RawBuilder<unknown> =>
  sql`workspace_id in (${workspaceId}, ${organisationId})`;

/**
 * Does the same as `idOfName` for the records in memory: searches those of `owners`, where earlier owners take precedence by
 * slug. Throws unavailable for an unreadable record.
 */
export function findLive<Entry>(
  { records, bySlug, unreadable }: Pick<LiveKind<Entry>, 'records' | 'bySlug' | 'unreadable'>,
  owners: readonly string[],
  name: string,
): Entry | undefined {
  const record = records.get(name);
  if (record !== undefined && owners.includes(record.workspaceId)) return record.entry;
  for (const owner of owners) {
    const entry = bySlug.get(owner)?.get(name);
    if (entry !== undefined) return entry;
  }
  refuseUnreadable({ unreadable }, owners, name);
  return undefined;
}

/**
 * Throws unavailable if `name` is the ID, slug or lookup of an unreadable record. `owners`: null means the records of all
 * workspaces. Without a name, throws if the owners have any unreadable record.
 */
export function refuseUnreadable(
  { unreadable }: Pick<LiveKind<unknown>, 'unreadable'>,
  owners: readonly string[] | null,
  name?: string,
): void {
  for (const [id, { workspaceId, slug, lookup, noun }] of unreadable) {
    if (owners?.includes(workspaceId) === false) continue;
    if (name !== undefined && name !== id && name !== slug && name !== lookup) continue;
    throw new GatewayError(
      'unavailable',
      'record_unreadable',
      `The stored data of the ${noun} '${slug ?? id}' cannot be read, so calls that need it are rejected. Update the record to store it again, or delete it.`,
    );
  }
}
