import { sql } from 'kysely';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { AnyResource } from '#libs/records/define-resource.ts';

// How much memory of a process a record takes up while it is cached (CachedKind).

/** Its entries in maps, its name and its times. */
const overheadBytes = 512;

const isText = ({ cached }: AnyResource): boolean => cached?.keepsText === true;

/** Estimates the memory that a record with this data takes up. */
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
