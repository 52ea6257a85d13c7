import { sql, type Kysely } from 'kysely';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { getSqlState } from './database-error.ts';
import type { Database } from './schema.ts';

/** The role for statements of a workspace. The application's role owns the tables, so policies do not apply to it. */
export const tenantRole = 'sluice_tenant';
export const workspaceSetting = 'sluice.workspace';

const inWorkspace = `workspace_id = current_setting('${workspaceSetting}', true)`;

/**
 * Kinds of records of which the organisation has some that every workspace sees (`shared`).
 * @testOnly
 */
export const sharedKinds = ['guardrail', 'integration', 'label', 'model', 'secret_reference'];
const isShared = `workspace_id = 'org_default' and kind in (${sharedKinds.map((kind) => `'${kind}'`).join(', ')})`;

/** Tables whose rows of the organisation are partly visible to all workspaces, which cannot write them. */
const hasSharedRows = new Set(['resource', 'resource_version']);

/** `rows`: those that belong to a workspace; null if the rows belong to no workspace. */
type Access = { rights: string; rows: string | null };

/** Tables without a workspace that requests use. All other tables without one are closed to requests. */
const otherTables: Readonly<Record<string, Access>> = {
  // The progress of the rollups, and the epochs of the log.
  rollup_state: { rights: 'select', rows: null },
  event_epoch: { rights: 'select', rows: null },
  // A single number, which commands increase.
  access_version: { rights: 'select, update', rows: null },
  // The policy of their batch decides whether they are visible.
  batch_chunk: { rights: 'select, update', rows: 'exists (select from batch where batch.id = batch_id)' },
};

type Table = { name: string; hasWorkspace: boolean; isGranted: boolean; comment: string | null };

/**
 * Gives every table with a `workspace_id`, and those of `otherTables`, a policy by which `sluice_tenant` sees and
 * writes only rows of the workspace in the setting `sluice.workspace`, and no rows without the setting. Tables that a
 * migration adds get theirs without being listed, and a policy that this release defines differently is replaced.
 * Creates the role if it has the right to.
 *
 * Runs after the migrations, under their lock, on a session without a transaction. Processes of other releases do not
 * notice, because they connect as the owner.
 */
export async function isolateWorkspaces(session: Kysely<Database>, logger: Logger): Promise<void> {
  await prepareRole(session, logger);
  const hasRole = await roleExists(session);
  if (hasRole) {
    await openSchema(session);
    await openFunctions(session);
    await openViews(session);
  }
  for (const { name, hasWorkspace, isGranted, comment } of await listTables(session)) {
    const wanted = definitionOf(name, hasWorkspace, hasRole);
    // A dump contains policies and their comments, but not the role. When it is restored elsewhere, the rights are
    // missing.
    if (comment === wanted.text && isGranted === hasRole) continue;
    await session.transaction().execute(async (tx) => {
      for (const statement of wanted.statements) await sql.raw(statement).execute(tx);
    });
  }
}

/** By default, all roles can use the schema "public", but some servers and schemas are stricter. */
async function openSchema(session: Kysely<Database>): Promise<void> {
  const { rows } = await sql<{ name: string; isOpen: boolean }>`
    select current_schema() as name, has_schema_privilege(${tenantRole}, current_schema(), 'usage') as "isOpen"`.execute(
    session,
  );
  const [schema] = rows;
  if (!schema || schema.isOpen) return;
  await sql`grant usage on schema ${sql.id(schema.name)} to ${sql.raw(tenantRole)}`.execute(session);
}

/** Functions that run as the owner, and check the workspace themselves. */
async function openFunctions(session: Kysely<Database>): Promise<void> {
  const { rows } = await sql<{ name: string }>`
    select oid::regprocedure::text as name from pg_proc
    where prosecdef and pronamespace = current_schema()::regnamespace and proowner = current_user::regrole
      and proname = any(${['metadata_rollup_of', 'value_rollup_of']})
      and not has_function_privilege(${tenantRole}, oid, 'execute')`.execute(session);
  for (const { name } of rows) await sql.raw(`grant execute on function ${name} to ${tenantRole}`).execute(session);
}

/** Views that read their tables with the rights of the caller, so that the policies of these apply. */
async function openViews(session: Kysely<Database>): Promise<void> {
  const { rows } = await sql<{ name: string }>`
    select oid::regclass::text as name from pg_class
    where relkind = 'v' and relnamespace = current_schema()::regnamespace and 'security_invoker=true' = any(reloptions)
      and not has_table_privilege(${tenantRole}, oid, 'select')`.execute(session);
  for (const { name } of rows) await sql.raw(`grant select on ${name} to ${tenantRole}`).execute(session);
}

/** The statements that isolate a table, and the comment from which a later start recognises that they ran. */
function definitionOf(
  name: string,
  hasWorkspace: boolean,
  hasRole: boolean,
): { text: string | null; statements: readonly string[] } {
  const table = `"${name}"`;
  const { rights, rows } = hasWorkspace ? ofWorkspace(name) : (otherTables[name] as Access);
  const grants = hasRole ? [`grant ${rights} on ${table} to ${tenantRole}`] : [];
  if (rows === null) return { text: null, statements: grants };
  const hasShared = hasSharedRows.has(name);
  const policies = [
    `alter table ${table} enable row level security`,
    `drop policy if exists workspace_isolation on ${table}`,
    `drop policy if exists workspace_reads on ${table}`,
    `create policy workspace_isolation on ${table} using (${rows}) with check (${rows})`,
    ...(hasShared ? [`create policy workspace_reads on ${table} for select using (${isShared})`] : []),
  ];
  const text = `${rows}${hasShared ? ` or ${isShared}` : ''}; ${rights}`;
  const comment = `comment on policy workspace_isolation on ${table} is '${text.replaceAll("'", "''")}'`;
  return { text, statements: [...policies, ...grants, comment] };
}

const ofWorkspace = (name: string): Access => ({
  // The log is insert-only for all roles.
  rights: name === 'event' ? 'select, insert' : 'select, insert, update, delete',
  rows: inWorkspace,
});

async function listTables(session: Kysely<Database>): Promise<Table[]> {
  const { rows } = await sql<Table>`
    select class.relname as name, attribute.attname is not null as "hasWorkspace",
      coalesce(has_table_privilege(role.oid, class.oid, 'select'), false) as "isGranted",
      obj_description(policy.oid, 'pg_policy') as comment
    from pg_class as class
    left join pg_attribute as attribute on attribute.attrelid = class.oid and attribute.attname = 'workspace_id'
      and not attribute.attisdropped
    left join pg_policy as policy on policy.polrelid = class.oid and policy.polname = 'workspace_isolation'
    left join pg_roles as role on role.rolname = ${tenantRole}
    where class.relnamespace = current_schema()::regnamespace and class.relkind in ('r', 'p') and not class.relispartition
      and (attribute.attname is not null or class.relname = any(${Object.keys(otherTables)}))
    order by class.relname`.execute(session);
  return rows;
}

const roleExists = async (session: Kysely<Database>): Promise<boolean> =>
  (await sql`select from pg_roles where rolname = ${tenantRole}`.execute(session)).rows.length > 0;

/**
 * Roles belong to the whole server: several of its databases can be migrated concurrently, so the role can exist already.
 */
async function prepareRole(session: Kysely<Database>, logger: Logger): Promise<void> {
  if (await canAssumeTenantRole(session)) return;
  const statements = [
    `create role ${tenantRole} nologin`,
    // From PostgreSQL 16 on, the creator of a role can grant it but cannot yet assume it.
    `grant ${tenantRole} to current_user`,
  ];
  for (const statement of statements) {
    try {
      await sql.raw(statement).execute(session);
    } catch (error) {
      const state = getSqlState(error) ?? '';
      const isThere = state === '42710' || state === '23505';
      if (isThere) continue;
      if (state !== '42501') throw error;
      // If the role cannot be created, it cannot be granted either. The API logs a warning at its start.
      logger.debug({ err: error }, 'this database role cannot create the role for workspaces');
      return;
    }
  }
}

/**
 * Whether statements of a workspace can run as `sluice_tenant`. If not, an operator has to create the role, or grant it to
 * the role that Sluice connects as.
 */
export async function canAssumeTenantRole(db: Kysely<Database>): Promise<boolean> {
  // "set" is a privilege of PostgreSQL 16 and newer. In older versions, members can always assume the role.
  const { rows } = await sql<{ may: boolean }>`
    select pg_has_role(current_user, oid, case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end)
      as may from pg_roles where rolname = ${tenantRole}`.execute(db);
  return rows[0]?.may ?? false;
}
