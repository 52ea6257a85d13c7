import type { ColumnMembers, LogRecord } from '#libs/contracts/logs/logs.ts';
import { toDollars } from '#libs/prices/to-dollars.ts';
import { columnList, type RequestLogTable } from '../columns.ts';
import { getVersionedPath } from '../record/imported-call.ts';
import { classifyCallOutcome } from '../row/call-outcome.ts';
import { getLogUuidTime, toLogId } from '../row/log-id.ts';

type ShownRow = Omit<RequestLogTable, 'recorded_on' | 'bodies_blob'>;

/** A row of the log as the API shows it. */
export function toLogRecord(row: ShownRow): LogRecord {
  const { duration_ms, upstream_ms, config_id } = row;
  const usage = toMembers(row, 'usage');
  return {
    id: toLogId(row.id),
    object: 'log',
    created_at: new Date(getLogUuidTime(row.id)).toISOString(),
    ...toMembers(row, 'record'),
    path: pathOf(row),
    config: config_id === null ? null : { id: config_id, slug: row.config, version: row.config_version },
    outcome: classifyCallOutcome(row),
    gateway_ms: Math.max(0, duration_ms - upstream_ms),
    usage: Object.values(usage).every((value) => value === null) ? null : usage,
  };
}

function toMembers<Place extends keyof ColumnMembers>(row: ShownRow, place: Place): ColumnMembers[Place] {
  const members = columnList.flatMap(([name, { type, shown }]) => {
    if (shown === undefined || (shown.in ?? 'record') !== place) return [];
    const value = row[name as keyof ShownRow];
    if (value instanceof Date) return [[shown.name ?? name, value.toISOString()]];
    return [[shown.name ?? name, type === 'cents' && typeof value === 'string' ? toDollars(value) : value]];
  });
  return Object.fromEntries(members) as ColumnMembers[Place];
}

/** The path; for a call that was made elsewhere, the path of its URL. */
const pathOf = ({ kind, path }: ShownRow): string =>
  kind === 'imported' && URL.canParse(path) ? getVersionedPath(new URL(path)) : path;
