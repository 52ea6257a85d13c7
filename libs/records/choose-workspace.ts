import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { asSystem, rebind } from '#libs/database/workspace-binding.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { idOfName } from './find-by-name.ts';

/**
 * The workspace of a request whose `workspace_id` (id or slug) is `wanted`: absent, the caller's own. A key of the
 * organisation can choose any, and the request is then bound to it; another key can only name its own. Throws not_found, for those that exist as well.
 */
export async function chosenWorkspace(
  db: Kysely<Database>,
  caller: Pick<Caller, 'workspaceId' | 'principal'>,
  wanted: string | undefined,
): Promise<string> {
  if (wanted === undefined || wanted === caller.workspaceId) return caller.workspaceId;
  const isOfOrganisation = caller.principal.type === 'organisation_key';
  const id = await (isOfOrganisation ? asSystem(() => findWorkspace(db, wanted)) : findWorkspace(db, wanted));
  if (id !== null && (isOfOrganisation || id === caller.workspaceId)) {
    rebind(id);
    return id;
  }
  throw noSuchWorkspace(wanted, 'workspace_id');
}

/**
 * The workspace of the record with this ID, for an organisation key that does not name the workspace: IDs are unique in the
 * installation. Undefined for other keys, other names and deleted workspaces.
 */
export async function workspaceOfRecord(
  db: Kysely<Database>,
  { principal }: Pick<Caller, 'principal'>,
  { noun, idPrefix }: { noun: string; idPrefix: string },
  name: string,
): Promise<string | undefined> {
  if (principal.type !== 'organisation_key' || !name.startsWith(idPrefix)) return undefined;
  // A prompt is also named with its version, as in `prm_1@3`.
  const [id] = name.split('@');
  const find = sql<{ workspace: string }>`
    select workspace.id as workspace from resource record join resource workspace on workspace.id = record.workspace_id
    where record.id = ${id} and record.kind = ${noun} and workspace.kind = 'workspace' and workspace.deleted_at is null`;
  const { rows } = await asSystem(() => find.execute(db));
  return rows[0]?.workspace;
}

/** The id of the workspace that has this id or slug; null for none. */
export async function findWorkspace(db: Kysely<Database>, wanted: string): Promise<string | null> {
  const { rows } = await sql<{ id: string | null }>`
    select ${idOfName('workspace', wanted, sql`true`)} as id`.execute(db);
  return rows[0]?.id ?? null;
}

export function noSuchWorkspace(wanted: string, param: string): GatewayError {
  const message = `There is no workspace '${wanted.slice(0, 100)}'.`;
  return new GatewayError('not_found', 'workspace_not_found', message, { param });
}
