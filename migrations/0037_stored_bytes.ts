import { sql, type Kysely } from 'kysely';

/**
 * Keeps the bytes of each workspace's files, so that no upload adds up all files. Each of a few database sessions has a
 * row of its own to add to, so that commands of one workspace rarely wait for each other.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table stored_bytes (
      workspace_id text not null,
      share smallint not null,
      bytes bigint not null,
      primary key (workspace_id, share)
    ) with (fillfactor = 70)`.execute(db);
  await sql`
    create function count_stored_bytes() returns trigger language plpgsql as $$
    declare
      added bigint := 0;
    begin
      if tg_op <> 'INSERT' and old.deleted_at is null then added := added - old.bytes; end if;
      if tg_op <> 'DELETE' and new.deleted_at is null then added := added + new.bytes; end if;
      if added <> 0 then
        insert into stored_bytes as stored (workspace_id, share, bytes)
        values (coalesce(new.workspace_id, old.workspace_id), pg_backend_pid() % 8, added)
        on conflict (workspace_id, share) do update set bytes = stored.bytes + excluded.bytes;
      end if;
      return null;
    end $$`.execute(db);
  // This lock keeps other processes from writing files until the sums are committed.
  await sql`
    create trigger count_stored_bytes after insert or delete or update of deleted_at, bytes on file
    for each row execute function count_stored_bytes()`.execute(db);
  await sql`
    insert into stored_bytes (workspace_id, share, bytes)
    select workspace_id, 0, sum(bytes) from file where deleted_at is null group by workspace_id`.execute(db);
  await sql`drop index file_stored`.execute(db);
  await sql`
    create index file_deleted on file (workspace_id, deleted_at) include (bytes) where deleted_at is not null`.execute(
    db,
  );
}
