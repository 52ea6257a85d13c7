import { sql, type Kysely } from 'kysely';

/**
 * What a call cost, and everything that the log is searched and summed by. All columns may be null and have no default, so
 * that no row is rewritten and processes of the release before go on writing theirs. There is no new index: the lists are
 * read by (workspace_id, recorded_on, id), and every further index is paid for with each row.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    alter table request_log
      -- The user whose key it was; key_id is the key.
      add column user_id text,
      add column method text,
      add column path text,
      -- How the targets of its config are chosen: single, fallback, loadbalance, conditional.
      add column mode text,
      -- The slug as it was, because a deleted one is free again.
      add column config_id text,
      add column config text,
      add column config_version integer,
      add column integration text,
      add column prompt_slug text,
      add column prompt_version integer,
      add column cache_status text,
      -- Attempts that repeated another one at the same target, and targets that were left for another one.
      add column retries integer,
      add column fallbacks integer,
      -- Of the duration, the time that providers took.
      add column upstream_ms double precision,
      add column cache_write_tokens bigint,
      add column audio_input_tokens bigint,
      add column audio_output_tokens bigint,
      -- Whatever else was counted: images, seconds, characters, searches, the class of service.
      add column usage_details jsonb,
      -- In US cents. Null: not known, which is not the same as 0.
      add column cost numeric,
      -- What an answer from the cache would have cost.
      add column saved_cost numeric,
      -- Whether usage or cost are estimates, because the provider did not say.
      add column is_estimate boolean,
      add column price_version text,
      -- The blob with the bodies of the call, where they are recorded.
      add column bodies_blob text`.execute(db);
  // 'imported': what was not called through here. Not validated, because all rows of all days would be read for it.
  await sql`
    alter table request_log
      drop constraint request_log_kind_check,
      add constraint request_log_kind_check check (kind in ('live', 'batch', 'imported')) not valid`.execute(db);
}
