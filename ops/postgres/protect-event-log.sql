-- Gives the event log to a role that Sluice cannot become, so that Sluice's own role cannot disable the triggers of the log.
-- Run it as a superuser in Sluice's database, after the first start (docs/deploy.md). Repeating it changes nothing.
do $$
declare
  application name := (select pg_get_userbyid(relowner) from pg_class where oid = 'event'::regclass);
begin
  if application = 'sluice_log' then
    return;
  end if;
  if not exists (select from pg_roles where rolname = 'sluice_log') then
    create role sluice_log nologin;
  end if;
  -- The owner of a schema can drop its tables.
  execute format('alter schema %I owner to sluice_log', current_schema());
  execute format('grant usage, create on schema %I to %I', current_schema(), application);
  alter table event owner to sluice_log;
  alter function place_event() owner to sluice_log;
  alter function event_envelope(event) owner to sluice_log;
  alter function salted_sha256(bytea, json) owner to sluice_log;
  alter function only_erases(jsonb, jsonb) owner to sluice_log;
  alter function check_erasure() owner to sluice_log;
  alter function refuse_event_change() owner to sluice_log;
  execute format('grant select, insert on event to %I', application);
  execute format('grant update (data, metadata) on event to %I', application);
  grant select on event_epoch to sluice_log;
  -- Policies never applied to the owner of the tables. They must not apply to it here either, also for pg_dump.
  execute format('alter role %I bypassrls', application);
end $$;
