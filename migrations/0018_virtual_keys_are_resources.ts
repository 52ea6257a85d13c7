import { sql, type Kysely } from 'kysely';

/** Moves virtual keys to `resource`, as 0016 did with configs and API keys: the old table is kept up to date for one release. */
export async function up(db: Kysely<unknown>): Promise<void> {
  // A process of the last release may be writing: what it commits between the copy and its trigger would be lost.
  await sql`lock table virtual_key in share row exclusive mode`.execute(db);
  await sql`
    create function resource_of_virtual_key(old virtual_key) returns resource language sql stable as $$
      select row(old.id, old.workspace_id, old.version, old.updated_at, 'virtual_key', old.slug, null,
        jsonb_build_object('name', old.name, 'provider', old.provider, 'custom_host', old.custom_host, 'note', old.note,
          'settings', old.settings, 'secret_id', old.secret_id, 'secret_last_four', old.secret_last_four,
          'expires_at', iso_time(old.expires_at)),
        null, old.created_at, old.deleted_at)::resource
    $$`.execute(db);
  await sql`
    create function virtual_key_of_resource(new resource) returns virtual_key language sql stable as $$
      select row(new.id, new.workspace_id, new.version, new.updated_at, new.slug, new.data ->> 'name',
        new.data ->> 'provider', new.data ->> 'custom_host', new.data ->> 'note', new.data -> 'settings',
        new.data ->> 'secret_id', new.data ->> 'secret_last_four', new.created_at,
        (new.data ->> 'expires_at')::timestamptz, new.deleted_at)::virtual_key
    $$`.execute(db);
  await sql`insert into resource select (resource_of_virtual_key(old)).* from virtual_key as old`.execute(db);
  // What the old table does not know stays as it is. A change that a trigger makes is not copied back.
  await sql
    .raw(
      `create function copy_virtual_key_to_resource() returns trigger language plpgsql as $$
       begin
         if pg_trigger_depth() > 1 then return null; end if;
         insert into resource select (resource_of_virtual_key(new)).*
         on conflict (id) do update set version = excluded.version, updated_at = excluded.updated_at,
           slug = excluded.slug, data = resource.data || excluded.data, deleted_at = excluded.deleted_at;
         return null;
       end $$;
       create trigger copy_to_resource after insert or update on virtual_key
         for each row execute function copy_virtual_key_to_resource();
       create function copy_resource_to_virtual_key() returns trigger language plpgsql as $$
       begin
         if pg_trigger_depth() > 1 then return null; end if;
         delete from virtual_key where id = new.id;
         insert into virtual_key select (virtual_key_of_resource(new)).*;
         return null;
       end $$;
       create trigger copy_to_virtual_key after insert or update on resource
         for each row when (new.kind = 'virtual_key') execute function copy_resource_to_virtual_key()`,
    )
    .execute(db);
}
