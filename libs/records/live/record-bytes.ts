import { sql } from 'kysely';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { AnyResource } from '#libs/records/define-resource.ts';
import type { StoreDeps } from '#libs/records/kit.ts';

// How much memory of a process a record takes up while it is cached (CachedKind).

/** Its entries in maps, its name and its times. */
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
 * The same as an SQL expression over rows of `resource`, so that the size of a record is known before it is read. It follows
 * the weights of measure-json.ts, without distinguishing what is inside strings, so it is somewhat higher.
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
 * Throws conflict (`records_too_large`) if a record of a workspace grows and all of its cached records would then take up
 * more memory than allowed. Their size is that of this process's snapshot, so requests that run at the same time can exceed
 * the limit by what they store.
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
