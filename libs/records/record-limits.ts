import { sql } from 'kysely';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AnyResource } from './define-resource.ts';
import type { StoreDeps } from './kit.ts';
import { recordBytes } from '#libs/records/live/record-bytes.ts';

/** Throws conflict (`too_many_records`) if the owner already has the maximum number of records of a kind. */
export async function refuseMoreRecords(
  { tx }: Pick<UnitOfWork, 'tx'>,
  { noun, names, countLimit }: AnyResource,
  ownerId: string,
  deps: StoreDeps,
): Promise<void> {
  if (countLimit === undefined) return;
  const { max, variable } = countLimit(deps);
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from resource
    where kind = ${noun} and workspace_id = ${ownerId} and deleted_at is null`.execute(tx);
  if ((rows[0]?.count ?? 0) < max) return;
  const owner = ownerId === organisationId ? 'The organisation' : 'This workspace';
  const message = `${owner} already has ${max} ${names.many}, the maximum (${variable}). Delete some that are no longer used.`;
  throw new GatewayError('conflict', 'too_many_records', message);
}

/**
 * Throws conflict (`records_too_large`) if a record of a workspace grows and all of its cached records would then take up
 * more memory than allowed. Their size is that of this process's snapshot, so requests that run at the same time can exceed
 * the limit by what they store.
 */
export function refuseMoreMemory(
  kind: AnyResource,
  before: { data: object } | null,
  after: { data: object; workspace_id: string },
  {
    snapshot,
    recordLimits: { memoryBytesMax } = { memoryBytesMax: Infinity },
  }: Pick<StoreDeps, 'snapshot' | 'recordLimits'>,
): void {
  if (kind.cached === undefined || snapshot.memoryOf === undefined || after.workspace_id === organisationId) return;
  const growth = recordBytes(kind, after.data) - (before === null ? 0 : recordBytes(kind, before.data));
  const bytes = snapshot.memoryOf(after.workspace_id) + growth;
  if (growth <= 0 || bytes <= memoryBytesMax) return;
  const message =
    `The records of this workspace would take up ${bytes} bytes of memory in each process; ` +
    `the maximum is ${memoryBytesMax} (SLUICE_RECORDS_MEMORY_MAX). ` +
    'Delete or shorten large records that are no longer used.';
  throw new GatewayError('conflict', 'records_too_large', message);
}
