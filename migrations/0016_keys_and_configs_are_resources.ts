import { sql, type Kysely } from 'kysely';

/**
 * Moves configs, their versions and API keys to `resource` and `resource_version`. The old tables stay for one release:
 * triggers copy each change both ways, so that processes of the last release run beside this one, and after a rollback.
 * The migration that drops them drops the triggers with them.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  // A process of the last release may be writing: what it commits between the copy and its trigger would be lost.
  await sql`lock table config, config_version, api_key in share row exclusive mode`.execute(db);
  // As the events have it: ISO 8601 with milliseconds.
  await sql`
    create function iso_time(moment timestamptz) returns text language sql immutable as $$
      select to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
    $$`.execute(db);

  await sql`
    create function resource_of_config(old config) returns resource language sql immutable as $$
      select row(old.id, old.workspace_id, old.version, old.updated_at, 'config', old.slug, null,
        jsonb_build_object('name', old.name, 'config', old.config, 'config_version', old.config_version),
        old.config_version, old.created_at, old.deleted_at)::resource
    $$`.execute(db);
  await sql`
    create function config_of_resource(new resource) returns config language sql immutable as $$
      select row(new.id, new.workspace_id, new.version, new.updated_at, new.slug, new.data ->> 'name',
        new.data -> 'config', new.last_version, new.created_at, new.deleted_at)::config
    $$`.execute(db);

  await sql`
    create function resource_of_api_key(old api_key) returns resource language sql stable as $$
      select row(old.id, old.workspace_id, old.version, old.updated_at, 'api_key', null, old.digest,
        jsonb_build_object('name', old.name, 'digest', old.digest, 'last_four', old.last_four,
          'scopes', coalesce(old.scopes, 'null'), 'defaults', old.defaults, 'expires_at', iso_time(old.expires_at)),
        null, old.created_at, old.revoked_at)::resource
    $$`.execute(db);
  await sql`
    create function api_key_of_resource(new resource) returns api_key language sql stable as $$
      select row(new.id, new.workspace_id, new.version, new.updated_at, new.data ->> 'name', new.data ->> 'digest',
        new.data ->> 'last_four', nullif(new.data -> 'scopes', 'null'), new.data -> 'defaults', new.created_at,
        (new.data ->> 'expires_at')::timestamptz, new.deleted_at)::api_key
    $$`.execute(db);

  await sql`insert into resource select (resource_of_config(old)).* from config as old`.execute(db);
  await sql`insert into resource select (resource_of_api_key(old)).* from api_key as old`.execute(db);
  await sql`
    insert into resource_version
    select id, workspace_id, version, updated_at, 'config', config_id, config_version,
      jsonb_build_object('config', config), created_at from config_version`.execute(db);

  // A change that a trigger makes is not copied back.
  for (const kind of ['config', 'api_key']) {
    await sql
      .raw(
        `create function copy_${kind}_to_resource() returns trigger language plpgsql as $$
         begin
           if pg_trigger_depth() > 1 then return null; end if;
           insert into resource select (resource_of_${kind}(new)).*
           on conflict (id) do update set version = excluded.version, updated_at = excluded.updated_at,
             slug = excluded.slug, lookup = excluded.lookup, last_version = excluded.last_version,
             data = resource.data || excluded.data, deleted_at = excluded.deleted_at;
           return null;
         end $$;
         create trigger copy_to_resource after insert or update on ${kind}
           for each row execute function copy_${kind}_to_resource();
         create function copy_resource_to_${kind}() returns trigger language plpgsql as $$
         begin
           if pg_trigger_depth() > 1 then return null; end if;
           delete from ${kind} where id = new.id;
           insert into ${kind} select (${kind}_of_resource(new)).*;
           return null;
         end $$;
         create trigger copy_to_${kind} after insert or update on resource
           for each row when (new.kind = '${kind}') execute function copy_resource_to_${kind}()`,
      )
      .execute(db);
  }
  await sql
    .raw(
      `create function copy_config_version() returns trigger language plpgsql as $$
       begin
         if pg_trigger_depth() > 1 then return null; end if;
         if tg_table_name = 'config_version' then
           insert into resource_version values (new.id, new.workspace_id, new.version, new.updated_at, 'config',
             new.config_id, new.config_version, jsonb_build_object('config', new.config), new.created_at)
           on conflict (id) do nothing;
         else
           insert into config_version values (new.id, new.workspace_id, new.version, new.updated_at, new.resource_id,
             new.number, new.data -> 'config', new.created_at)
           on conflict (id) do nothing;
         end if;
         return null;
       end $$;
       create trigger copy_to_resource after insert on config_version
         for each row execute function copy_config_version();
       create trigger copy_to_config_version after insert on resource_version
         for each row when (new.kind = 'config') execute function copy_config_version()`,
    )
    .execute(db);
}
