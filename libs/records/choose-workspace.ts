import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { asSystem, rebind } from '#libs/database/workspace-binding.ts';
import { organisationId, type Caller } from '#libs/http/caller.ts';
import { actsForOrganisation, reachesEveryWorkspace } from '#libs/http/rights.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { idOfName } from './find-by-name.ts';

/**
 * Returns the workspace of a request whose `workspace_id` (an ID or slug) is `wanted`; if it is absent, the caller's own
 * workspace. An organisation key can choose any workspace, and the request is then bound to it; other keys can only name
 * their own. Throws not_found otherwise, even if the workspace exists.
 */
export async function chosenWorkspace(
  db: Kysely<Database>,
  caller: Pick<Caller, 'workspaceId' | 'principal'>,
  wanted: string | undefined,
): Promise<string> {
  if (wanted === undefined || wanted === caller.workspaceId) return caller.workspaceId;
  const reachesAll = reachesEveryWorkspace(caller);
  const id = await (reachesAll ? asSystem(() => findWorkspace(db, wanted)) : findWorkspace(db, wanted));
  if (id !== null && (reachesAll || id === caller.workspaceId)) {
    rebind(id);
    return id;
  }
  throw noSuchWorkspace(wanted, 'workspace_id');
}

/** Like `chosenWorkspace`, except that an organisation key that names no workspace gets all of them: returns null. */
export async function chosenWorkspaces(
  db: Kysely<Database>,
  caller: Pick<Caller, 'workspaceId' | 'principal'>,
  wanted: string | undefined,
): Promise<string | null> {
  if (wanted !== undefined || !reachesEveryWorkspace(caller)) return await chosenWorkspace(db, caller, wanted);
  rebind(null);
  return null;
}

/**
 * Like `chosenWorkspace`, except that a caller who acts for the organisation can also choose the organisation itself, and
 * an organisation key a deleted workspace, because its events are kept.
 */
export async function chosenLog(
  db: Kysely<Database>,
  caller: Pick<Caller, 'workspaceId' | 'principal'>,
  wanted: string | undefined,
): Promise<string> {
  if (wanted === organisationId && actsForOrganisation(caller)) {
    rebind(organisationId);
    return organisationId;
  }
  const deleted =
    wanted !== undefined && reachesEveryWorkspace(caller)
      ? await asSystem(() => findDeletedWorkspace(db, wanted))
      : null;
  if (deleted === null) return await chosenWorkspace(db, caller, wanted);
  rebind(deleted);
  return deleted;
}

/** Returns the ID of a deleted workspace. Returns null if an active workspace has this ID or slug. */
async function findDeletedWorkspace(db: Kysely<Database>, wanted: string): Promise<string | null> {
  if ((await findWorkspace(db, wanted)) !== null) return null;
  const { rows } = await sql<{ id: string | null }>`
    select ${idOfName('workspace', wanted, sql`true`, { isDeleted: true })} as id`.execute(db);
  return rows[0]?.id ?? null;
}

/**
 * Returns the workspace of the record with this ID, for an organisation key that does not name the workspace; IDs are unique
 * in the installation. Returns undefined for other keys, names that are not IDs and deleted workspaces.
 */
export async function workspaceOfRecord(
  db: Kysely<Database>,
  caller: Pick<Caller, 'principal'>,
  { noun, idPrefix }: { noun: string; idPrefix: string },
  name: string,
): Promise<string | undefined> {
  if (!reachesEveryWorkspace(caller) || !name.startsWith(idPrefix)) return undefined;
  // A record can also be named with its version, as in `record_1@3`.
  const [id] = name.split('@');
  const find = sql<{ workspace: string }>`
    select workspace.id as workspace from resource record join resource workspace on workspace.id = record.workspace_id
    where record.id = ${id} and record.kind = ${noun} and workspace.kind = 'workspace' and workspace.deleted_at is null`;
  const { rows } = await asSystem(() => find.execute(db));
  return rows[0]?.workspace;
}

/** Returns the ID of the workspace that has this ID or slug, or null if there is none. */
export async function findWorkspace(db: Kysely<Database>, wanted: string): Promise<string | null> {
  const { rows } = await sql<{ id: string | null }>`
    select ${idOfName('workspace', wanted, sql`true`)} as id`.execute(db);
  return rows[0]?.id ?? null;
}

export function noSuchWorkspace(wanted: string, param: string): GatewayError {
  const message = `There is no workspace '${wanted.slice(0, 100)}'.`;
  return new GatewayError('not_found', 'workspace_not_found', message, { param });
}
