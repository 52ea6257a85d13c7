-- The schema of Sluice 0.1.0, by area. It does not include row-level security: libs/database/isolate-workspaces.ts adds
-- policies to every table with a workspace_id after each migration.

-- ---------------------------------------------------------------------------------------------------------------------
-- The event log
-- ---------------------------------------------------------------------------------------------------------------------

-- Transaction IDs start low again in another cluster, so restoring a backup raises the epoch (libs/event-log/epoch.ts).
create table event_epoch (epoch integer primary key, raised_at timestamptz not null);
insert into event_epoch values (0, clock_timestamp());

create table event (
  position bigint primary key,
  epoch integer not null,
  -- Assigned after the stream's advisory lock is held, so that it grows with the version within a stream.
  transaction_id xid8 not null,
  event_id uuid not null unique,
  workspace_id text not null,
  stream_id text not null,
  stream_version integer not null check (stream_version > 0),
  type text not null,
  schema_version smallint not null check (schema_version > 0),
  -- Canonical JSON (RFC 8785), which the type json keeps byte for byte.
  data json not null,
  metadata json not null,
  recorded_at timestamptz not null,
  -- An erasure replaces a salt by the digest that it belonged to.
  data_salt bytea,
  data_sha256 bytea,
  metadata_salt bytea,
  metadata_sha256 bytea,
  -- Of event_envelope().
  sha256 bytea not null,
  -- The size of data and metadata.
  bytes integer not null,
  unique (stream_id, stream_version),
  check ((data_salt is null) = (data_sha256 is not null)),
  check ((metadata_salt is null) = (metadata_sha256 is not null))
);
create sequence event_position owned by event.position;
-- Subscribers read in this order and miss no event.
create index event_order on event (epoch, transaction_id, position);
create index event_of_workspace on event (workspace_id, epoch, transaction_id, position);
-- Finds the place in the log where a range of time begins.
create index event_time on event (recorded_at);
-- For the subscriber of webhooks, which reads few of all events.
create index event_of_webhooks on event (epoch, transaction_id, position)
  where type in ('batch.completed', 'batch.failed', 'batch.expired', 'batch.cancelled', 'fine_tuning_job.status_changed');
-- Rejects a repeated record of a provider, whatever a worker's state is. Cursors of pages also use it.
create unique index event_fine_tuning_record on event (stream_id, type, (data ->> 'id'))
  where type in ('fine_tuning_job.event_recorded', 'fine_tuning_job.checkpoint_recorded');

create function salted_sha256(salt bytea, value json) returns bytea language sql immutable as $$
  select sha256(salt || convert_to(value::text, 'UTF8'))
$$;

-- The text that the SHA-256 of an event covers: canonical JSON (RFC 8785) of exactly these members. `form` is the number
-- of this set of members. The position is left out, because it changes when the log is restored.
create function event_envelope(of event) returns text language sql stable as $$
  select format(
    '{"data_sha256":"%s","event_id":"%s","form":2,"metadata_sha256":"%s","recorded_at":"%s","schema_version":%s,'
      '"stream_id":%s,"stream_version":%s,"type":%s,"workspace_id":%s}',
    encode(coalesce(of.data_sha256, salted_sha256(of.data_salt, of.data)), 'hex'), of.event_id,
    encode(coalesce(of.metadata_sha256, salted_sha256(of.metadata_salt, of.metadata)), 'hex'),
    to_char(of.recorded_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), of.schema_version,
    to_json(of.stream_id), of.stream_version, to_json(of.type), to_json(of.workspace_id))
$$;

-- An insert can choose neither its position, transaction and epoch, nor a time before its transaction, nor its hash.
create function place_event() returns trigger language plpgsql security definer as $$
begin
  -- 122 random bits.
  new.data_salt := uuid_send(gen_random_uuid());
  new.data_sha256 := null;
  new.metadata_salt := uuid_send(gen_random_uuid());
  new.metadata_sha256 := null;
  new.bytes := octet_length(new.data::text) + octet_length(new.metadata::text);
  new.sha256 := sha256(convert_to(event_envelope(new), 'UTF8'));
  new.position := nextval('event_position');
  new.epoch := (select max(epoch) from event_epoch);
  new.transaction_id := pg_current_xact_id();
  if new.recorded_at < date_trunc('milliseconds', now()) or new.recorded_at > clock_timestamp() then
    -- After the clock was set back, the events of a stream keep the time of its last one.
    if not exists (select from event where stream_id = new.stream_id and stream_version = new.stream_version - 1
      and recorded_at = new.recorded_at) then
      raise exception 'an event of % is outside of its transaction, which began at %', new.recorded_at, now()
        using errcode = 'serialization_failure';
    end if;
  end if;
  return new;
end $$;
create trigger event_is_placed before insert on event for each row execute function place_event();

create function refuse_event_change() returns trigger language plpgsql as $$
begin
  raise exception 'the event log is insert-only: % refused', tg_op using errcode = 'insufficient_privilege';
end $$;
create trigger event_is_insert_only before delete or truncate on event
  for each statement execute function refuse_event_change();

-- Whether a value differs from an older one only by texts that became "[erased]".
create function only_erases(older jsonb, newer jsonb) returns boolean language plpgsql immutable as $$
begin
  return case
    when newer = older then true
    when jsonb_typeof(older) = 'string' then newer = '"[erased]"'
    when jsonb_typeof(older) <> jsonb_typeof(newer) then false
    when jsonb_typeof(older) = 'object' then
      (select count(*) from jsonb_object_keys(older)) = (select count(*) from jsonb_object_keys(newer))
      and (select bool_and(newer ? key and only_erases(value, newer -> key)) from jsonb_each(older))
    when jsonb_typeof(older) = 'array' then
      jsonb_array_length(older) = jsonb_array_length(newer)
      and (select bool_and(only_erases(value, newer -> (place - 1)::int))
        from jsonb_array_elements(older) with ordinality as item (value, place))
    else false end;
end $$;

-- The only change of an event is an erasure: texts of its data or metadata become "[erased]", and this replaces the salt
-- by the digest. So the hash of the event stays valid, and does not help to guess what was erased.
create function check_erasure() returns trigger language plpgsql as $$
declare
  erased event := old;
begin
  erased.data := new.data;
  erased.metadata := new.metadata;
  if new::text <> erased::text or new::text = old::text
    or not only_erases(old.data::jsonb, new.data::jsonb) or not only_erases(old.metadata::jsonb, new.metadata::jsonb) then
    raise exception 'the event log is insert-only: % refused', tg_op using errcode = 'insufficient_privilege';
  end if;
  if new.data::text <> old.data::text then
    erased.data_sha256 := coalesce(old.data_sha256, salted_sha256(old.data_salt, old.data));
    erased.data_salt := null;
  end if;
  if new.metadata::text <> old.metadata::text then
    erased.metadata_sha256 := coalesce(old.metadata_sha256, salted_sha256(old.metadata_salt, old.metadata));
    erased.metadata_salt := null;
  end if;
  erased.bytes := octet_length(erased.data::text) + octet_length(erased.metadata::text);
  return erased;
end $$;
do $$
begin
  execute format('alter function place_event() set search_path = %I, pg_temp', current_schema());
  execute format('alter function check_erasure() set search_path = %I, pg_temp', current_schema());
end $$;
create trigger event_is_only_erased before update on event for each row execute function check_erasure();
-- The owner loses these rights too, but can grant them to itself. ops/postgres/protect-event-log.sql gives the log to
-- another owner.
revoke update, delete, truncate on event from public, current_user;
grant update (data, metadata) on event to current_user;

create table subscription_checkpoint (
  name text primary key,
  epoch integer not null default 0,
  transaction_id xid8 not null,
  position bigint not null,
  failures integer not null default 0,
  last_error text,
  retry_at timestamptz,
  moved_at timestamptz
);

-- How far the log is sealed (libs/seal): a single row, for the tree that grows.
create table seal (
  id boolean primary key default true check (id),
  tree integer not null default 0,
  -- The name of the log in its checkpoints.
  name text not null default '',
  epoch integer not null default 0,
  size bigint not null default 0,
  -- The hashes of the partial tiles, from the leaves upwards, and the partial bundle of entries.
  hashes bytea not null default '',
  bundle bytea not null default '',
  checkpoint text not null default '',
  -- The process that seals.
  holder text,
  held_until timestamptz not null default '-infinity',
  unpublished_since timestamptz,
  publish_after timestamptz not null default '-infinity'
);
insert into seal default values;
-- The last entry of each workspace.
create table seal_workspace (workspace_id text primary key, number bigint not null, sha256 bytea not null);
-- Where some events are in the trees. The others are counted from there (libs/seal/find-place.ts).
create table seal_place (
  epoch integer not null,
  transaction_id xid8 not null,
  position bigint not null,
  tree integer not null,
  index bigint not null,
  primary key (epoch, transaction_id, position)
);

create table command_result (
  workspace_id text not null,
  key_id text not null,
  route text not null,
  idempotency_key text not null,
  fingerprint text not null,
  status smallint not null,
  body jsonb not null,
  recorded_at timestamptz not null,
  retry_count smallint not null default 0,
  primary key (workspace_id, key_id, route, idempotency_key)
);
create index command_result_age on command_result (recorded_at);
-- A retried call without an idempotency key is recognised by the hash of its body.
create index command_result_fingerprint on command_result (workspace_id, key_id, route, fingerprint, recorded_at);

-- Facts about this installation, such as the ID of the blob store and the check value of the master key.
create table installation (name text primary key, value text not null);

-- Records who changed what, when, and from where. Written by a subscriber.
create table activity (
  id uuid primary key,
  workspace_id text not null,
  recorded_at timestamptz not null,
  action text not null,
  resource_type text not null,
  resource_id text not null,
  actor_type text not null,
  actor_id text not null,
  -- The owner of the key, or the user who signed in.
  principal_id text,
  request_id text,
  trace_id text,
  address text,
  method text,
  uri text,
  status smallint
);
create index activity_list on activity (workspace_id, recorded_at desc, id desc);
-- The audit log of an organisation key covers all workspaces.
create index activity_of_all on activity (recorded_at desc, id desc);

-- ---------------------------------------------------------------------------------------------------------------------
-- Records and secrets
-- ---------------------------------------------------------------------------------------------------------------------

-- Records of every kind that libs/resources defines. A new kind needs no table.
create table resource (
  id text primary key,
  workspace_id text not null,
  version integer not null,
  updated_at timestamptz not null,
  kind text not null,
  slug text,
  lookup text,
  data jsonb not null,
  last_version integer,
  created_at timestamptz not null,
  deleted_at timestamptz,
  last_event_id uuid
);
create unique index resource_slug on resource (workspace_id, kind, slug) where deleted_at is null;
create unique index resource_lookup on resource (kind, lookup);
create index resource_list on resource (workspace_id, kind, created_at desc, id desc);
-- For lists of the whole organisation, and for the processes' snapshots.
create index resource_kind on resource (kind, created_at desc, id desc);

-- One row for each event that created a version. Rows never change, so that a batch can pin a version.
create table resource_version (
  id text primary key,
  workspace_id text not null,
  version integer not null,
  updated_at timestamptz not null,
  kind text not null,
  resource_id text not null,
  number integer not null,
  data jsonb not null,
  created_at timestamptz not null,
  last_event_id uuid,
  unique (resource_id, number)
);

-- Ciphertexts. Primary data, not a fold: a secret is removed together with its owner.
create table secret (
  id text primary key,
  workspace_id text not null,
  owner_id text not null,
  master_key_id text not null,
  wrapped_key bytea not null,
  ciphertext bytea not null,
  created_at timestamptz not null
);
create index secret_owner on secret (owner_id);

-- A single row, which every process polls: its snapshot is stale when the number differs from the one it loaded.
create table access_version (id boolean primary key default true check (id), version bigint not null);
insert into access_version (version) values (0);

-- Records which workspace created which object at a provider whose account several workspaces share. An object without a
-- row belongs to no workspace.
create table stored_object (
  -- The ID of the integration that has the credential.
  account_id text not null,
  object_id text not null,
  workspace_id text not null,
  kind text not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (account_id, object_id)
);
create index stored_object_by_age on stored_object (workspace_id, account_id, kind, created_at);

-- The tokens that limits have counted for objects whose usage is known later, such as assistant runs. The process that
-- reads the usage deletes the row and counts the rest.
create table late_usage (
  workspace_id text not null,
  object_id text not null,
  input_tokens bigint not null,
  output_tokens bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (workspace_id, object_id)
);
create index late_usage_by_age on late_usage (workspace_id, created_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- Files
-- ---------------------------------------------------------------------------------------------------------------------

create table file (
  id text primary key,
  workspace_id text not null,
  version integer not null,
  updated_at timestamptz not null,
  purpose text not null,
  filename text not null,
  bytes bigint not null,
  sha256 text not null,
  blob text not null,
  created_at timestamptz not null,
  expires_at timestamptz,
  deleted_at timestamptz,
  last_event_id uuid
);
create index file_list on file (workspace_id, created_at desc, id desc) where deleted_at is null;
-- For the files that existed at an earlier moment.
create index file_history on file (workspace_id, created_at desc, id desc);
create index file_blob on file (blob);
create index file_expiry on file (expires_at) where deleted_at is null and expires_at is not null;
-- Deleted files count towards a workspace's storage until their bytes are swept.
create index file_deleted on file (workspace_id, deleted_at) include (bytes) where deleted_at is not null;

-- The bytes of each workspace's files, so that an upload need not add up all of them. Each of a few database sessions
-- adds to a different row, so that commands of one workspace rarely wait for each other.
create table stored_bytes (
  workspace_id text not null,
  share smallint not null,
  bytes bigint not null,
  primary key (workspace_id, share)
) with (fillfactor = 70);
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
end $$;
create trigger count_stored_bytes after insert or delete or update of deleted_at, bytes on file
  for each row execute function count_stored_bytes();

-- Files that clients send in parts. An incomplete upload has no event and expires without a trace.
create table upload (
  id text primary key,
  workspace_id text not null,
  filename text not null,
  purpose text not null,
  mime_type text not null,
  -- The size of the whole file as the client announced it, and its hash if the client sent one.
  bytes bigint not null,
  sha256 text,
  -- The lifetime of the file, in seconds from its creation.
  expires_after bigint,
  status text not null default 'pending' check (status in ('pending', 'completed', 'cancelled')),
  file_id text,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null
);
create index upload_of_workspace on upload (workspace_id, created_at) where status = 'pending';
create index upload_by_hash on upload (workspace_id, sha256) where sha256 is not null;
create index upload_expiry on upload (expires_at);

create table upload_part (
  id text primary key,
  upload_id text not null references upload on delete cascade,
  workspace_id text not null,
  blob text not null,
  bytes bigint not null,
  sha256 text not null,
  created_at timestamptz not null default clock_timestamp()
);
create index upload_part_of_upload on upload_part (upload_id, created_at, id);
create index upload_part_blob on upload_part (blob);

-- ---------------------------------------------------------------------------------------------------------------------
-- Batches
-- ---------------------------------------------------------------------------------------------------------------------

create table batch (
  id text primary key,
  workspace_id text not null,
  version integer not null,
  updated_at timestamptz not null,
  endpoint text not null,
  completion_window text not null,
  input_file_id text not null,
  metadata jsonb,
  target jsonb not null,
  gateway_options jsonb not null,
  headers jsonb not null,
  output_expires_after_seconds integer,
  status text not null check (status in
    ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')),
  finalizing_reason text,
  errors jsonb,
  model text,
  chunk_count integer not null,
  total integer not null,
  completed integer not null,
  failed integer not null,
  usage jsonb not null,
  output_checks jsonb,
  paused_at timestamptz,
  -- The bound of the batch (max_cost or max_error_rate) that has paused or cancelled it.
  bound_reached text,
  output_file_id text,
  error_file_id text,
  created_at timestamptz not null,
  expires_at timestamptz not null,
  in_progress_at timestamptz,
  finalizing_at timestamptz,
  completed_at timestamptz,
  failed_at timestamptz,
  expired_at timestamptz,
  cancelling_at timestamptz,
  cancelled_at timestamptz,
  last_event_id uuid,
  check (completed >= 0 and failed >= 0 and completed + failed <= total)
);
create index batch_list on batch (workspace_id, created_at desc, id desc);
create index batch_open on batch (created_at, id)
  where status in ('validating', 'in_progress', 'finalizing', 'cancelling');
create index batch_input_file on batch (input_file_id)
  where status in ('validating', 'in_progress', 'finalizing', 'cancelling');
create index batch_workspace_open on batch (workspace_id)
  where status in ('validating', 'in_progress', 'finalizing', 'cancelling');
create index batch_deadline on batch (expires_at) where status in ('validating', 'in_progress', 'cancelling');
create index batch_cancelling on batch (cancelling_at) where status = 'cancelling';

-- The processes that hold batch work. Each counts its beat up; whoever sees one stand still takes its work over
-- (libs/queue/process-lease.ts). `os_process` says which process of which host it is (libs/kernel/os-process.ts).
create table worker_process (
  id text primary key,
  beat bigint not null default 0,
  os_process text,
  started_at timestamptz not null default clock_timestamp()
);

-- The part of the work that a workspace has had, per kind of work (libs/batches/chunks/turns.ts). `active`: it can have
-- turns that are ready. Only what is active is in the index, in the order in which workspaces come next.
create table batch_share (
  lane text not null check (lane in ('lines', 'small_files', 'large_files')),
  workspace_id text not null,
  weight double precision not null default 1 check (weight > 0),
  virtual_time double precision not null default 0,
  active boolean not null default false,
  primary key (lane, workspace_id)
) with (fillfactor = 70);
create index batch_share_next on batch_share (lane, virtual_time) where active;

-- What comes next for each batch that has not ended. Its work is held by one process (validating, finalizing) or, chunk
-- by chunk, by several.
create table batch_turn (
  batch_id text primary key,
  workspace_id text not null,
  work text not null check (work in ('validate', 'lines', 'close', 'finalise')),
  lane text not null check (lane in ('lines', 'small_files', 'large_files')),
  priority smallint not null,
  order_at timestamptz not null,
  paused boolean not null default false,
  -- How much of it can be claimed: its chunks that are ready, or 1 for other work that nobody holds.
  ready integer not null check (ready >= 0),
  -- For work other than lines: who holds it, how often it failed in a row, and when it is ready again.
  holder text,
  failures integer not null default 0,
  due_at timestamptz
) with (fillfactor = 70);
create index batch_turn_next on batch_turn (lane, workspace_id, priority desc, order_at, batch_id)
  where ready > 0 and not paused;
create index batch_turn_held on batch_turn (holder) where holder is not null;
create index batch_turn_due on batch_turn (due_at) where due_at is not null;

-- Byte ranges of the input file, not copies of its lines. A chunk costs one update at a time, never one per line. Its
-- states and what changes them: libs/batches/chunks/chunk.ts.
create table batch_chunk (
  batch_id text not null,
  chunk integer not null,
  byte_offset bigint not null,
  byte_length bigint not null,
  -- The line with which the byte range begins; first_line is higher if the chunk was split in two.
  range_first_line integer not null,
  first_line integer not null,
  line_count integer not null,
  state text not null default 'ready' check (state in ('ready', 'held', 'waiting', 'done')),
  holder text,
  -- How often it was claimed. With the holder it identifies a claim.
  claim integer not null default 0,
  due_at timestamptz,
  -- One bit for each line from first_line on, from the highest bit of the first byte: 1 if it has a result.
  settled bytea not null,
  -- The same for lines that were possibly called before without a result, by a process that died. Null: none.
  repeated bytea,
  -- How the last claim ended: with its process (null), by handing back lines that were running (stopped), or without any
  -- (clean). Tells a chunk that kills its worker from others (libs/batches/chunks/resume-chunk.ts).
  claim_end text check (claim_end in ('stopped', 'clean')),
  settled_before integer not null default 0,
  claims_without_progress integer not null default 0,
  snoozes integer not null default 0,
  primary key (batch_id, chunk),
  check ((state = 'held') = (holder is not null) and (state = 'waiting') = (due_at is not null))
) with (fillfactor = 70);
create index batch_chunk_open on batch_chunk (batch_id, state, chunk) where state <> 'done';
create index batch_chunk_held on batch_chunk (holder) where holder is not null;
create index batch_chunk_due on batch_chunk (due_at) where due_at is not null;

-- Claims the next work of a lane for a process, unless the process was given up (libs/batches/chunks/turns.ts). It takes
-- no lock to choose a turn: two processes can choose the same one, and only one of them gets it. The cost depends neither
-- on the number of batches nor on how many of them are paused or waiting.
--
-- This is a function because planning its statements takes longer than running them, and Postgres keeps the plans of a
-- function for a session, also through a pooler. A plan can be made while the tables are empty, so the settings allow only
-- plans by index, which are right for every size.
create function claim_work(
  process text, wanted text, except_workspaces text[], except_batches text[],
  -- is_found: there was work to claim, although another process may have been faster. others: other batches have work too.
  out is_found boolean, out others boolean, out weight double precision, out active_weight double precision,
  -- The turn before the claim, and the chunk after it. Null: not claimed.
  out turn batch_turn, out chunk batch_chunk
) language plpgsql
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
  chosen record;
  cost double precision := 1;
begin
  select share.workspace_id, share.weight, candidate.batch_id into chosen
  from batch_share as share cross join lateral (
    select batch_id from batch_turn
    where lane = share.lane and workspace_id = share.workspace_id and ready > 0 and not paused
      and batch_id <> all(except_batches)
    order by priority desc, order_at, batch_id limit 1
  ) as candidate
  where share.lane = wanted and share.active and share.workspace_id <> all(except_workspaces)
  order by share.virtual_time limit 1;
  is_found := chosen.batch_id is not null;
  weight := coalesce(chosen.weight, 1);
  active_weight := (select coalesce(sum(shares.weight), 0) from (
    select weight from batch_share where lane = wanted and active limit 64
  ) as shares);
  others := (select count(*) > 1 from (
    select from batch_turn
    where lane = wanted and ready > 0 and not paused and batch_id <> all(except_batches) limit 2
  ) as turns);
  if not is_found then return; end if;

  perform id from worker_process where id = process for key share;
  if not found then return; end if;
  select * into turn from batch_turn
  where batch_id = chosen.batch_id and lane = wanted and ready > 0 and not paused for update skip locked;
  if not found then return; end if;
  if wanted = 'lines' then
    update batch_chunk set state = 'held', holder = process, claim = claim + 1
    where batch_id = chosen.batch_id and state = 'ready' and chunk = (
      select chunk from batch_chunk where batch_id = chosen.batch_id and state = 'ready' order by chunk limit 1
    ) returning * into chunk;
    if not found then return; end if;
    cost := chunk.line_count;
    update batch_turn set ready = ready - 1 where batch_id = chosen.batch_id;
  else
    update batch_turn set ready = 0, holder = process where batch_id = chosen.batch_id;
  end if;
  update batch_share set virtual_time = virtual_time + cost / weight
  where lane = wanted and workspace_id = chosen.workspace_id;
end $$;

-- The results of lines that were settled together. Each line is in one row, in which its result is final. There is one
-- partition per creation day of the batch (bucket), which is dropped when all its batches are past retention.
create table batch_result (
  bucket date not null,
  batch_id text not null,
  -- All lines of a row are in one stripe, so that the rows of a range of lines are found by the primary key
  -- (libs/batches/results/stored-results.ts).
  stripe integer not null,
  first_line integer not null,
  last_line integer not null,
  -- The version of the event that settled the lines.
  version integer not null,
  -- One element for each line, in the order of the lines: its number, the length of its result in bytes, and the HTTP
  -- status of its answer, or 0 without one. `digests` has 32 bytes for each line, the SHA-256 of its result.
  lines integer[] not null,
  lengths integer[] not null,
  statuses smallint[] not null,
  digests bytea not null,
  -- The lines that failed, by error code and status. Null if none did.
  failures jsonb,
  -- The exact lines of the output and error file, one after the other without line ends: here, or in a blob from
  -- segment_offset on.
  data bytea,
  segment text,
  segment_offset bigint,
  primary key (bucket, batch_id, stripe, first_line),
  check ((data is null) = (segment is not null) and (segment is null) = (segment_offset is null))
) partition by list (bucket);
-- For streams of results, which are in the order in which lines were settled.
create index batch_result_order on batch_result (bucket, batch_id, version, first_line);
-- For the sweep of blobs, which must not delete those that are still needed.
create index batch_result_segment on batch_result (segment) where segment is not null;

-- The running calls and the waits of the lines of batches, from each worker's last report. Unlogged, because workers
-- report them again after a crash of the server.
create unlogged table batch_line_report (
  batch_id text not null,
  process_id text not null,
  workspace_id text not null,
  calls integer not null,
  waits jsonb not null,
  reported_at timestamptz not null,
  primary key (batch_id, process_id)
);
create index batch_line_report_age on batch_line_report (reported_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- Fine-tuning jobs. Their events and checkpoints are read from the log itself.
-- ---------------------------------------------------------------------------------------------------------------------

create table fine_tuning_job (
  id text primary key,
  workspace_id text not null,
  version integer not null,
  updated_at timestamptz not null,
  request jsonb not null,
  training_file_id text not null,
  validation_file_id text,
  metadata jsonb,
  target jsonb not null,
  status text not null check (status in
    ('validating_files', 'queued', 'running', 'paused', 'succeeded', 'failed', 'cancelled')),
  requested text check (requested in ('cancel', 'pause', 'resume')),
  provider_training_file_id text,
  provider_validation_file_id text,
  provider_job_id text,
  method jsonb not null,
  hyperparameters jsonb not null,
  fine_tuned_model text,
  trained_tokens bigint,
  estimated_finish bigint,
  result_files jsonb not null,
  error jsonb,
  created_at timestamptz not null,
  accepted_at timestamptz,
  finished_at timestamptz,
  last_event_id uuid
);
create index fine_tuning_job_list on fine_tuning_job (workspace_id, created_at desc, id desc);
-- For the sweep of blobs, which must not delete files that a job still reads.
create index fine_tuning_job_training_file_id on fine_tuning_job (training_file_id) where finished_at is null;
create index fine_tuning_job_validation_file_id on fine_tuning_job (validation_file_id) where finished_at is null;

-- ---------------------------------------------------------------------------------------------------------------------
-- Around a call: cache, circuits, limits. Unlogged tables cost no WAL and are in no backup. Their content is disposable,
-- and calls produce it again after a crash of the server.
-- ---------------------------------------------------------------------------------------------------------------------

create unlogged table response_cache (
  workspace_id text not null,
  key bytea not null,
  head jsonb not null,
  body bytea not null,
  size_bytes integer not null,
  created_at timestamptz not null,
  expires_at timestamptz not null,
  primary key (workspace_id, key)
);
-- Live calls read and write it, so time matters more than space.
alter table response_cache alter column body set storage external;
create index response_cache_expiry on response_cache (expires_at);
-- Adds up a workspace's bytes without reading a body.
create index response_cache_age on response_cache (workspace_id, created_at desc) include (size_bytes);

create unlogged table provider_circuit (
  id text primary key,
  workspace_id text not null,
  credential_id text not null,
  label text not null,
  provider text not null,
  model text not null,
  opened_at timestamptz not null,
  open_until timestamptz not null,
  failures integer not null,
  reason text not null
);
create index provider_circuit_expiry on provider_circuit (open_until);

-- What budgets and rates have counted: one row for each limit and each value that it is grouped by. Calls update the row
-- a few times a second, so no column that changes is indexed, and pages keep room for the next version.
create table limit_counter (
  id text primary key,
  workspace_id text not null,
  limit_id text not null,
  value_key text not null,
  kind text not null,
  max numeric not null,
  period_start timestamptz not null,
  period_end timestamptz,
  used numeric not null,
  assumed numeric not null,
  -- The part of the use that was reserved by calls whose actual use is unknown, because their answers were lost.
  unconfirmed numeric not null default 0 constraint limit_counter_unconfirmed_not_negative check (unconfirmed >= 0),
  unpriced bigint not null,
  is_alerted boolean not null,
  leases jsonb not null,
  reset_at timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null,
  -- A negative amount would be a credit for all callers that share the limit.
  constraint limit_counter_not_negative check (
    max >= 0 and used >= 0 and assumed >= 0 and unpriced >= 0
    and not jsonb_path_exists(leases, '$.*.amount ? (@ starts with "-")')
  )
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index limit_counter_of_limit on limit_counter (limit_id, created_at desc, id);

-- How many calls of a credential and model the providers take, as all processes have learned, and the shares of the
-- processes (libs/limits/call-limit.ts). Updated every second while there are calls. After a crash, the processes write
-- what they know again.
create unlogged table call_limit (
  id text primary key,
  workspace_id text not null,
  credential_id text not null,
  model text not null,
  learned double precision not null,
  is_answered boolean not null,
  rejected_at timestamptz,
  burst jsonb,
  -- The end of the wait that the provider has asked for.
  limited_until timestamptz,
  shares jsonb not null,
  updated_at timestamptz not null
) with (fillfactor = 50);
create index call_limit_of_workspace on call_limit (workspace_id);
create index call_limit_waits on call_limit (limited_until) where limited_until is not null;

-- ---------------------------------------------------------------------------------------------------------------------
-- The request log
-- ---------------------------------------------------------------------------------------------------------------------

-- One row for each live call, imported call and batch line that is in no pack, written in groups after the answer. There
-- is one partition per day.
create table request_log_row (
  recorded_on date not null,
  id uuid not null,
  workspace_id text not null,
  -- The API key, and the user to whom it belongs.
  key_id text,
  user_id text,
  -- 'imported': the call was made elsewhere.
  kind text not null check (kind in ('live', 'batch', 'imported')),
  operation text not null,
  method text,
  path text,
  request_id text not null,
  trace_id text,
  span_id text,
  parent_span_id text,
  span_name text,
  metadata jsonb,
  provider text,
  virtual_key text,
  integration text,
  model text,
  response_model text,
  provider_request_id text,
  -- Names are stored as they were at the time of the call, because the slug of a deleted record can be used again.
  config_id text,
  config text,
  config_version integer,
  prompt_slug text,
  prompt_version integer,
  -- How the config chooses its targets: single, fallback, loadbalance, conditional.
  mode text,
  last_used_option text,
  cache_status text,
  stream boolean not null,
  status integer,
  error_code text,
  finish_reason text,
  attempts integer not null,
  -- Attempts that repeated another one at the same target, and targets that were left for another one.
  retries integer,
  fallbacks integer,
  started_at timestamptz not null,
  duration_ms double precision not null,
  first_event_ms double precision,
  -- The time that providers took, as a part of the duration.
  upstream_ms double precision,
  input_tokens bigint,
  cached_tokens bigint,
  cache_write_tokens bigint,
  output_tokens bigint,
  reasoning_tokens bigint,
  audio_input_tokens bigint,
  audio_output_tokens bigint,
  -- Other amounts: images, seconds, characters, searches, the service tier.
  usage_details jsonb,
  -- In US cents. Null means unknown, which differs from 0. The saved cost is the provider's cost that the cache avoided.
  cost numeric,
  saved_cost numeric,
  -- Whether usage or cost are estimates, because the provider did not report them.
  is_estimate boolean,
  price_version text,
  batch_id text,
  batch_line integer,
  -- Attempts and guardrails with their times. Null for a call with one attempt and no guardrail, to keep its row small.
  steps jsonb,
  -- The blob with the recorded bodies of the call.
  bodies_blob text,
  -- A killed process loses at most one group, which shows as a gap in its sequence.
  process_id uuid not null,
  sequence bigint not null,
  -- The result of each guardrail. Null for a call without guardrails.
  guardrails jsonb,
  -- In hex. Null unless the workspace asks for digests.
  sha256_salt text,
  request_sha256 text,
  answer_sha256 text,
  -- The name of the public model in the call.
  public_model text,
  -- The agent session and sub-agent that made the call.
  session_id text,
  agent_id text,
  parent_agent_id text,
  -- What the prompt cache of the provider saved, in US cents. Negative if writing cost more than reading saved.
  prompt_cache_saved numeric,
  primary key (id, recorded_on)
) partition by range (recorded_on);
-- Lists and searches use only these, because each further index would cost time with every row.
create index request_log_row_list on request_log_row (workspace_id, recorded_on desc, id desc);
create index request_log_row_trace on request_log_row (trace_id, recorded_on desc, id desc);
create index request_log_row_session on request_log_row (session_id, recorded_on desc, id desc)
  where session_id is not null;

-- Lines of one batch that one process recorded in the same minute and that differ only in the arrays, which have an
-- element for each line; an array that would only have nulls is null. As rows, they would take ten times the space. The
-- request ID of a line follows from its batch and its number, and the steps are JSON.
create table request_log_pack (
  recorded_on date not null,
  first_id uuid not null,
  last_id uuid not null,
  workspace_id text not null,
  batch_id text not null,
  process_id uuid not null,
  -- For rollups: the sums of the arrays, the lines without a cost, and the latencies as in call_rollup.
  lines integer not null,
  sum_input_tokens numeric not null,
  sum_output_tokens numeric not null,
  sum_cached_tokens numeric not null,
  sum_cache_write_tokens numeric not null,
  sum_cost numeric not null,
  sum_saved_cost numeric not null,
  sum_prompt_cache_saved numeric not null,
  sum_duration_us numeric not null,
  unpriced integer not null,
  latency text not null,
  key_id text,
  user_id text,
  kind text,
  operation text,
  method text,
  path text,
  trace_id text,
  span_id text,
  parent_span_id text,
  span_name text,
  metadata jsonb,
  provider text,
  virtual_key text,
  integration text,
  model text,
  response_model text,
  config_id text,
  config text,
  config_version integer,
  prompt_slug text,
  prompt_version integer,
  mode text,
  last_used_option text,
  cache_status text,
  stream boolean,
  status integer,
  error_code text,
  attempts integer,
  retries integer,
  fallbacks integer,
  first_event_ms double precision,
  audio_input_tokens bigint,
  audio_output_tokens bigint,
  usage_details jsonb,
  is_estimate boolean,
  price_version text,
  bodies_blob text,
  guardrails jsonb,
  public_model text,
  -- Always null, because lines have no session.
  session_id text,
  agent_id text,
  parent_agent_id text,
  id uuid[],
  provider_request_id text[],
  finish_reason text[],
  started_at timestamptz[],
  duration_ms double precision[],
  upstream_ms double precision[],
  input_tokens bigint[],
  cached_tokens bigint[],
  cache_write_tokens bigint[],
  output_tokens bigint[],
  reasoning_tokens bigint[],
  cost numeric[],
  saved_cost numeric[],
  prompt_cache_saved numeric[],
  batch_line integer[],
  sequence bigint[],
  steps text[],
  sha256_salt text[],
  request_sha256 text[],
  answer_sha256 text[],
  primary key (last_id, recorded_on)
) partition by range (recorded_on);
-- Compressed in the row. By default, every text would be moved out of it and be read again for each comparison.
alter table request_log_pack
  alter workspace_id set storage main, alter batch_id set storage main, alter latency set storage main,
  alter key_id set storage main, alter user_id set storage main, alter kind set storage main,
  alter operation set storage main, alter method set storage main, alter path set storage main,
  alter trace_id set storage main, alter span_id set storage main, alter parent_span_id set storage main,
  alter span_name set storage main, alter metadata set storage main, alter provider set storage main,
  alter virtual_key set storage main, alter integration set storage main, alter model set storage main,
  alter response_model set storage main, alter config_id set storage main, alter config set storage main,
  alter prompt_slug set storage main, alter mode set storage main, alter last_used_option set storage main,
  alter cache_status set storage main, alter error_code set storage main, alter usage_details set storage main,
  alter price_version set storage main, alter bodies_blob set storage main, alter guardrails set storage main,
  alter public_model set storage main,
  alter session_id set storage main, alter agent_id set storage main, alter parent_agent_id set storage main,
  alter id set storage main,
  alter provider_request_id set storage main, alter finish_reason set storage main, alter started_at set storage main,
  alter duration_ms set storage main, alter upstream_ms set storage main, alter input_tokens set storage main,
  alter cached_tokens set storage main, alter cache_write_tokens set storage main,
  alter output_tokens set storage main, alter reasoning_tokens set storage main, alter cost set storage main,
  alter saved_cost set storage main, alter prompt_cache_saved set storage main, alter batch_line set storage main, alter sequence set storage main,
  alter steps set storage main;
-- Digests are random: they cannot be compressed, would fill the page, and are only read for single calls.
alter table request_log_pack
  alter sha256_salt set storage external, alter request_sha256 set storage external,
  alter answer_sha256 set storage external;
create index request_log_pack_list on request_log_pack (workspace_id, recorded_on desc, last_id desc);
create index request_log_pack_batch on request_log_pack (batch_id);
create index request_log_pack_trace on request_log_pack (trace_id) where trace_id is not null;
create index request_log_pack_session on request_log_pack (session_id) where session_id is not null;

-- All calls. The IDs of the pack of a call allow a reader to skip packs; without a pack, both are its own.
create view request_log with (security_invoker = true) as
  select recorded_on, id, workspace_id, key_id, user_id, kind, operation, method, path, request_id, trace_id, span_id,
    parent_span_id, span_name, metadata, provider, virtual_key, integration, model, response_model,
    provider_request_id, config_id, config, config_version, prompt_slug, prompt_version, mode, last_used_option,
    cache_status, stream, status, error_code, finish_reason, attempts, retries, fallbacks, started_at, duration_ms,
    first_event_ms, upstream_ms, input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
    audio_input_tokens, audio_output_tokens, usage_details, cost, saved_cost, is_estimate, price_version, batch_id,
    batch_line, steps, bodies_blob, process_id, sequence, guardrails, sha256_salt, request_sha256, answer_sha256,
    public_model, session_id, agent_id, parent_agent_id, prompt_cache_saved,
    id as first_id, id as last_id
  from request_log_row
  union all
  select pack.recorded_on, line.id, pack.workspace_id, pack.key_id, pack.user_id, pack.kind, pack.operation,
    pack.method, pack.path,
    'batch_req_' || left(encode(sha256(convert_to(pack.batch_id || ':' || line.batch_line, 'UTF8')), 'hex'), 32),
    pack.trace_id, pack.span_id, pack.parent_span_id, pack.span_name, pack.metadata, pack.provider, pack.virtual_key,
    pack.integration, pack.model, pack.response_model,
    line.provider_request_id, pack.config_id, pack.config, pack.config_version, pack.prompt_slug, pack.prompt_version,
    pack.mode, pack.last_used_option, pack.cache_status, pack.stream, pack.status, pack.error_code,
    line.finish_reason, pack.attempts, pack.retries, pack.fallbacks, line.started_at, line.duration_ms,
    pack.first_event_ms, line.upstream_ms, line.input_tokens, line.cached_tokens, line.cache_write_tokens,
    line.output_tokens, line.reasoning_tokens, pack.audio_input_tokens, pack.audio_output_tokens, pack.usage_details,
    line.cost, line.saved_cost, pack.is_estimate, pack.price_version, pack.batch_id, line.batch_line, line.steps::jsonb,
    pack.bodies_blob, pack.process_id, line.sequence, pack.guardrails, line.sha256_salt,
    line.request_sha256, line.answer_sha256, pack.public_model,
    pack.session_id, pack.agent_id, pack.parent_agent_id, line.prompt_cache_saved,
    pack.first_id, pack.last_id
  from request_log_pack as pack cross join lateral unnest(
    pack.id, pack.provider_request_id, pack.finish_reason, pack.started_at, pack.duration_ms,
    pack.upstream_ms, pack.input_tokens, pack.cached_tokens, pack.cache_write_tokens, pack.output_tokens,
    pack.reasoning_tokens, pack.cost, pack.saved_cost, pack.batch_line, pack.sequence,
    pack.steps, pack.sha256_salt, pack.request_sha256, pack.answer_sha256, pack.prompt_cache_saved
  ) as line (
    id, provider_request_id, finish_reason, started_at, duration_ms, upstream_ms, input_tokens,
    cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens, cost, saved_cost, batch_line, sequence, steps,
    sha256_salt, request_sha256, answer_sha256, prompt_cache_saved
  );

-- The progress of each process, reported at a low rate and once more when it stops. The log alone shows a row that is
-- missing in the middle, but not one that is missing at the end.
create table request_log_process (
  process_id uuid primary key,
  app text not null,
  version text not null,
  host text not null,
  -- By the clock of the process, like recorded_on of its rows; the other times are by the database's clock.
  started_at timestamptz not null,
  heard_at timestamptz not null,
  -- How many rows it had recorded by heard_at, when it last reported …
  last_sequence bigint not null,
  -- … of which those up to this one had been written, or counted in lost_rows.
  written_sequence bigint not null,
  lost_rows bigint not null,
  -- Set by an orderly stop, after the last row was written.
  stopped_at timestamptz
);

-- The first row of each process on each day. Retention drops whole days, so a process whose first remaining row is this
-- one has lost nothing.
create table request_log_day (
  process_id uuid not null,
  recorded_on date not null,
  first_sequence bigint not null,
  primary key (process_id, recorded_on)
);

-- The calls that retention deleted of days that other workspaces still need: a row for each piece and process. Their
-- rollups stay as they are, because they can no longer be computed.
create table request_log_deleted (
  workspace_id text not null,
  recorded_on date not null,
  process_id uuid not null,
  sequences int8multirange not null
);
create index request_log_deleted_days on request_log_deleted (recorded_on, workspace_id);

-- One row for each blob with the recorded bodies of many calls. Rows of the request log name it (`bodies_blob`).
create table recorded_bodies (
  id text primary key,
  workspace_id text not null,
  blob text not null,
  -- Where each call's bodies begin in the blob, and where the last ones end.
  offsets integer[] not null,
  -- The owner of the secret with the encryption key.
  key_owner text not null,
  size_bytes bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null
);
create index recorded_bodies_blob on recorded_bodies (blob);
create index recorded_bodies_expiry on recorded_bodies (expires_at);
create index recorded_bodies_size on recorded_bodies (workspace_id) include (size_bytes);
create index recorded_bodies_key on recorded_bodies (key_owner);

-- The parts that an export of the request log has written so far: one row for each finished blob, in the order of the
-- file. If the worker is killed, the next one continues after last_id.
create table log_export_part (
  workspace_id text not null,
  export_id text not null,
  part integer not null,
  blob text not null,
  size_bytes bigint not null,
  -- Rows in this part, and the matching rows before the export's page that were skipped up to its end.
  rows integer not null,
  skipped bigint not null,
  -- The last row of the log that was read.
  last_id uuid,
  created_at timestamptz not null default now(),
  primary key (export_id, part)
);
-- For the sweep of blobs, which must not delete those that are still needed.
create index log_export_part_blob on log_export_part (blob);

-- An event on its way to a webhook endpoint, or delivered there. Created by a subscriber, sent by the workers.
create table webhook_delivery (
  -- Derived from endpoint, object and type.
  id text primary key,
  workspace_id text not null,
  endpoint_id text not null,
  event_id uuid not null,
  type text not null,
  object_id text not null,
  created_at timestamptz not null,
  attempts integer not null default 0,
  last_attempt_at timestamptz,
  last_status integer,
  last_error text,
  -- Null when no further attempt follows. During an attempt: when it is repeated if its worker is lost.
  next_attempt_at timestamptz,
  -- The last attempt is not later.
  retry_until timestamptz not null,
  delivered_at timestamptz
);
create index webhook_delivery_due on webhook_delivery (workspace_id, endpoint_id, next_attempt_at)
  where next_attempt_at is not null;
create index webhook_delivery_list on webhook_delivery (endpoint_id, created_at desc, id desc);
create index webhook_delivery_age on webhook_delivery (created_at);

-- How far the events of the log were pushed to each SIEM destination: all up to this position that it gets.
create table siem_cursor (
  destination_id text primary key,
  workspace_id text not null,
  epoch integer not null,
  transaction_id xid8 not null,
  position bigint not null,
  -- The last record that was sent of the seal that is the next event. Null: none was.
  sent_call uuid,
  -- Increases with each attempt. Only the process of the newest one moves the cursor.
  claims bigint not null default 0,
  -- During an attempt: when it is repeated if its worker is lost.
  next_attempt_at timestamptz not null default clock_timestamp(),
  failures integer not null default 0,
  last_error text,
  -- Records that collectors reported as dropped.
  dropped bigint not null default 0,
  sent_at timestamptz
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Analytics
-- ---------------------------------------------------------------------------------------------------------------------

create table feedback (
  id uuid primary key,
  workspace_id text not null,
  trace_id text not null,
  value smallint not null check (value between -10 and 10),
  weight numeric not null check (weight between 0 and 1),
  metadata jsonb,
  -- 'api' or 'guardrail', and the key of the request.
  source text not null,
  key_id text,
  created_at timestamptz not null,
  updated_at timestamptz not null
);
create index feedback_of_trace on feedback (workspace_id, trace_id);
create index feedback_list on feedback (workspace_id, created_at);

-- The minutes of the log with new rows: inserted in the transaction of those rows, deleted when they are rolled up.
create table request_log_change (
  id bigint generated always as identity primary key,
  first_at timestamptz not null,
  last_at timestamptz not null
);

-- The same times after they were rolled up, until their calls are sealed (libs/request-log/seal).
create table call_seal_due (
  id bigint generated always as identity primary key,
  first_at timestamptz not null,
  last_at timestamptz not null
);
-- Up to which row of each process the calls of a workspace are sealed.
create table call_seal_position (
  workspace_id text not null,
  process_id uuid not null,
  sequence bigint not null,
  primary key (workspace_id, process_id)
);
-- The hashes of the leaves of each seal, in their order, and the first and the last record. They show which record was
-- changed, and prove a record without the others.
create table call_seal (
  event_id uuid primary key,
  workspace_id text not null,
  first_id uuid not null,
  last_id uuid not null,
  hashes bytea not null
);
create index call_seal_last on call_seal (workspace_id, last_id);
-- Hashes cannot be compressed.
alter table call_seal alter hashes set storage external;

-- Calls with the same values of every column that analytics filters by. Buckets are bounded: calls beyond the limit are
-- counted in rows with `other`, whose values are null.
create table call_rollup (
  grain text not null,
  bucket timestamptz not null,
  workspace_id text not null,
  provider text,
  model text,
  status integer,
  failed boolean not null,
  key_id text,
  virtual_key text,
  config text,
  prompt_slug text,
  cache_status text,
  retries integer not null,
  fallback boolean not null,
  other boolean not null default false,
  requests bigint not null,
  refused_requests bigint not null default 0,
  input_tokens numeric not null,
  cached_tokens numeric not null default 0,
  cache_write_tokens numeric not null default 0,
  output_tokens numeric not null,
  cost numeric not null,
  unpriced bigint not null,
  saved_cost numeric not null,
  prompt_cache_saved numeric not null default 0,
  duration_us numeric not null,
  latency text not null,
  first_at timestamptz not null,
  last_at timestamptz not null
) partition by list (grain);
-- Old minutes are deleted while days stay for a year: separate partitions keep the holes out of the other tables.
create table call_rollup_minute partition of call_rollup for values in ('minute');
create table call_rollup_hour partition of call_rollup for values in ('hour');
create table call_rollup_day partition of call_rollup for values in ('day');
create index call_rollup_bucket on call_rollup (bucket);
create index call_rollup_list on call_rollup (workspace_id, bucket);

-- The same for each value of a metadata key.
create table metadata_rollup (
  key text not null,
  value text,
  like call_rollup including defaults
) partition by list (grain);
create table metadata_rollup_minute partition of metadata_rollup for values in ('minute');
create table metadata_rollup_hour partition of metadata_rollup for values in ('hour');
create table metadata_rollup_day partition of metadata_rollup for values in ('day');
create index metadata_rollup_bucket on metadata_rollup (bucket);
create index metadata_rollup_list on metadata_rollup (workspace_id, key, bucket);
-- This index uses a hash, because a long value does not fit an index page, and one such row would stop all rollups.
create index metadata_rollup_value on metadata_rollup (workspace_id, key, hashtextextended(value, 0), bucket);

-- Calls by one column, or by one metadata key: narrow rows for graphs and groups that need no combination.
create table value_rollup (
  grain text not null,
  bucket timestamptz not null,
  workspace_id text not null,
  key text not null,
  value text,
  other boolean not null default false,
  requests bigint not null,
  refused_requests bigint not null default 0,
  failed_requests bigint not null,
  input_tokens numeric not null,
  cached_tokens numeric not null default 0,
  cache_write_tokens numeric not null default 0,
  output_tokens numeric not null,
  cost numeric not null,
  unpriced bigint not null,
  saved_cost numeric not null,
  prompt_cache_saved numeric not null default 0,
  duration_us numeric not null,
  hits bigint not null,
  hit_duration_us numeric not null,
  latency text not null,
  first_at timestamptz not null,
  last_at timestamptz not null
) partition by list (grain);
-- Histograms are stored out of line, because most queries read only the numbers; the other columns never are.
alter table value_rollup alter latency set storage external, alter workspace_id set storage main,
  alter key set storage main, alter value set storage main, alter input_tokens set storage main,
  alter output_tokens set storage main, alter cost set storage main, alter saved_cost set storage main,
  alter duration_us set storage main, alter hit_duration_us set storage main, alter cached_tokens set storage main,
  alter cache_write_tokens set storage main, alter prompt_cache_saved set storage main;
create table value_rollup_minute partition of value_rollup for values in ('minute') with (toast_tuple_target = 128);
create table value_rollup_ten_minutes partition of value_rollup for values in ('ten_minutes')
  with (toast_tuple_target = 128);
create table value_rollup_hour partition of value_rollup for values in ('hour') with (toast_tuple_target = 128);
create table value_rollup_day partition of value_rollup for values in ('day') with (toast_tuple_target = 128);
create index value_rollup_bucket on value_rollup (bucket);
create index value_rollup_list on value_rollup (workspace_id, key, bucket);
create index value_rollup_value on value_rollup (workspace_id, key, hashtextextended(value, 0), bucket);

-- Finds rollups of single values for statements that row-level security restricts. Postgres cannot use the index on
-- hashes for them, because it evaluates the policy of each row before it calls a function that might reveal its
-- arguments. These functions run as the owner and check the workspace themselves.
create function metadata_rollup_of(wanted_workspace text, wanted_grain text, wanted_key text,
  wanted_values text[], from_at timestamptz, until_at timestamptz)
returns setof metadata_rollup language sql stable security definer as $$
  select * from metadata_rollup
  where (current_setting('role') <> 'sluice_tenant' or wanted_workspace = current_setting('sluice.workspace', true))
    and workspace_id = wanted_workspace and grain = wanted_grain and key = wanted_key
    and hashtextextended(value, 0) in (select hashtextextended(wanted, 0) from unnest(wanted_values) as wanted)
    and value = any(wanted_values) and bucket >= from_at and bucket < until_at
$$;
create function value_rollup_of(wanted_workspace text, wanted_grain text, wanted_key text,
  wanted_values text[], from_at timestamptz, until_at timestamptz)
returns setof value_rollup language sql stable security definer as $$
  select * from value_rollup
  where (current_setting('role') <> 'sluice_tenant' or wanted_workspace = current_setting('sluice.workspace', true))
    and workspace_id = wanted_workspace and grain = wanted_grain and key = wanted_key
    and hashtextextended(value, 0) in (select hashtextextended(wanted, 0) from unnest(wanted_values) as wanted)
    and value = any(wanted_values) and bucket >= from_at and bucket < until_at
$$;
do $$
declare
  name text;
begin
  foreach name in array array['metadata_rollup_of', 'value_rollup_of'] loop
    execute format('alter function %s set search_path = %I, pg_temp', name, current_schema());
    execute format('revoke all on function %s from public', name);
  end loop;
end $$;

-- The metadata keys for which a workspace has rollups. A row with the key '' shows when one was first refused.
create table rollup_key (
  workspace_id text not null,
  key text not null,
  -- Rollups include calls with this key from this time on.
  from_at timestamptz not null,
  -- The last day on which a call had it.
  seen_on date not null,
  primary key (workspace_id, key)
);

-- A single row, which the process that rolls up locks. Buckets from `…_from` to `…_until` exist.
create table rollup_state (
  id boolean primary key default true check (id),
  minutes_from timestamptz not null,
  tens_from timestamptz not null default '-infinity',
  tens_until timestamptz not null default date_trunc('hour', now(), 'UTC'),
  hours_from timestamptz not null,
  hours_until timestamptz not null,
  days_from timestamptz not null,
  days_until timestamptz not null,
  rolled_up_at timestamptz
);
insert into rollup_state (minutes_from, hours_from, hours_until, days_from, days_until)
values ('-infinity', '-infinity', date_trunc('hour', now(), 'UTC'), '-infinity', date_trunc('day', now(), 'UTC'));
