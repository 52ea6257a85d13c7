import { sql, type Kysely } from 'kysely';

/** Moves workspaces to `resource`, as 0016 did with configs and API keys: the old table is kept up to date for one release. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`lock table workspace in share row exclusive mode`.execute(db);
  await sql`
    create function resource_of_workspace(old workspace) returns resource language sql immutable as $$
      select row(old.id, old.workspace_id, old.version, old.updated_at, 'workspace', null, null,
        jsonb_build_object('name', old.name)
          || case when old.guardrails is null then '{}' else jsonb_build_object('guardrails', old.guardrails) end,
        null, old.created_at, null)::resource
    $$`.execute(db);
  await sql`
    create function workspace_of_resource(new resource) returns workspace language sql immutable as $$
      select row(new.id, new.workspace_id, new.version, new.updated_at, new.data ->> 'name', new.created_at,
        new.data -> 'guardrails')::workspace
    $$`.execute(db);
  await sql`insert into resource select (resource_of_workspace(old)).* from workspace as old`.execute(db);
  // The old table knows neither slugs nor deletion, so a change of it leaves them as they are.
  await sql
    .raw(
      `create function copy_workspace_to_resource() returns trigger language plpgsql as $$
       begin
         if pg_trigger_depth() > 1 then return null; end if;
         insert into resource select (resource_of_workspace(new)).*
         on conflict (id) do update set version = excluded.version, updated_at = excluded.updated_at,
           data = (resource.data - 'guardrails') || excluded.data;
         return null;
       end $$;
       create trigger copy_to_resource after insert or update on workspace
         for each row execute function copy_workspace_to_resource();
       create function copy_resource_to_workspace() returns trigger language plpgsql as $$
       begin
         if pg_trigger_depth() > 1 then return null; end if;
         delete from workspace where id = new.id;
         insert into workspace select (workspace_of_resource(new)).*;
         return null;
       end $$;
       create trigger copy_to_workspace after insert or update on resource
         for each row when (new.kind = 'workspace') execute function copy_resource_to_workspace()`,
    )
    .execute(db);
}
