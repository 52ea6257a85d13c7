import { sql, type Kysely } from 'kysely';

/** Fine-tuning jobs (a fold of their streams). Their events and checkpoints are read from the log itself. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
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
      finished_at timestamptz
    )`.execute(db);
  await sql`create index fine_tuning_job_list on fine_tuning_job (workspace_id, created_at desc, id desc)`.execute(db);
  // Which files a job still reads, for the sweeper of blobs.
  for (const column of ['training_file_id', 'validation_file_id']) {
    await sql`
      create index ${sql.ref(`fine_tuning_job_${column}`)} on fine_tuning_job (${sql.ref(column)})
      where finished_at is null`.execute(db);
  }

  // What the provider told is told once: held here, whatever a worker believes. It also finds a page's cursor.
  await sql`
    create unique index event_fine_tuning_record on event (stream_id, type, (data ->> 'id'))
    where type in ('fine_tuning_job.event_recorded', 'fine_tuning_job.checkpoint_recorded')`.execute(db);
}
