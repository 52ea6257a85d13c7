import { sql } from 'kysely';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { AnyResource } from '#libs/records/define-resource.ts';
import type { StoreDeps } from '#libs/records/kit.ts';

// How much memory of a process a record takes up while it is cached (CachedKind).

/** The record's entries in maps, its name and its times. */
const overheadBytes = 512;

const isText = ({ cached }: AnyResource): boolean => cached?.keepsText === true;

/** Estimates the memory that a record with this data takes up. @testOnly */
export function recordBytes(kind: AnyResource, data: object): number {
  const text = Buffer.from(JSON.stringify(data));
  const { textBytes, valueBytes } = measureJson(text, noLimits);
  return overheadBytes + (isText(kind) ? textBytes : valueBytes);
}

const noLimits = { depthMax: Number.POSITIVE_INFINITY, membersMax: Number.POSITIVE_INFINITY };

/**
 * The same estimate as an SQL expression over rows of `resource`, so that the size of a record is known before it is read.
 * It uses the weights of measure-json.ts but does not look inside strings, so its result is slightly higher.
 */
export const recordBytesSql = (kinds: readonly AnyResource[]) => sql<number>`(
  select ${overheadBytes}::int + case
    when kind = any(${kinds.filter(isText).map(({ noun }) => noun)}::text[])
      then octet_length(json) * case when octet_length(json) = length(json) then 1 else 2 end
    else 2 * octet_length(json)
      + 60 * (length(json) - length(translate(json, '{[:', '')))
      + 12 * (length(json) - length(translate(json, '",', '')))
    end
  from (select data::text as json) as form)`;

/**
 * Throws conflict (`records_too_large`) if a workspace's record grows and all of the workspace's cached records would then
 * exceed the memory limit. The size of the others comes from this process's snapshot, so concurrent requests can exceed the
 * limit by the amount that they store.
 */
export function refuseMoreMemory(
  kind: AnyResource,
  before: { data: object } | null,
  after: { data: object; workspace_id: string },
  { snapshot, recordLimits }: Pick<StoreDeps, 'snapshot' | 'recordLimits'>,
): void {
  if (kind.cached === undefined || snapshot.memoryOf === undefined || after.workspace_id === organisationId) return;
  const growth = recordBytes(kind, after.data) - (before === null ? 0 : recordBytes(kind, before.data));
  const bytes = snapshot.memoryOf(after.workspace_id) + growth;
  const bytesMax = recordLimits?.memoryBytesMax ?? Number.POSITIVE_INFINITY;
  if (growth <= 0 || bytes <= bytesMax) return;
  const message =
    `The records of this workspace would take up ${bytes} bytes of memory in each process; ` +
    `the maximum is ${bytesMax} (SLUICE_RECORDS_MEMORY_MAX). ` +
    'Delete or shorten large records that are no longer used.';
  throw new GatewayError('conflict', 'records_too_large', message);
}
