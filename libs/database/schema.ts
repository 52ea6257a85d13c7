import type { ColumnType, Generated, GeneratedAlways, JSONColumnType } from 'kysely';
import type { Usage } from '#libs/prices/usage.ts';
import type { RequestLogPackTable, RequestLogTable } from '#libs/request-log/columns.ts';

/** A jsonb column: read as the parsed value, written as JSON text (Postgres arrays and JSON arrays would be mixed up). */
type Json<Value extends object | null> = JSONColumnType<Value, string | (Value extends null ? null : never), string>;
type NullableJson<Value extends object> = ColumnType<Value | null, string | null, string | null>;

/** `GeneratedAlways`: set by a trigger. */
export type EventTable = {
  position: GeneratedAlways<number>;
  transaction_id: GeneratedAlways<string>;
  /** See libs/event-log/epoch.ts. */
  epoch: GeneratedAlways<number>;
  event_id: string;
  workspace_id: string;
  stream_id: string;
  stream_version: number;
  type: string;
  schema_version: number;
  data: Json<Record<string, unknown>>;
  metadata: Json<Record<string, unknown>>;
  recorded_at: Date;
  data_salt: GeneratedAlways<Buffer | null>;
  data_sha256: GeneratedAlways<Buffer | null>;
  metadata_salt: GeneratedAlways<Buffer | null>;
  metadata_sha256: GeneratedAlways<Buffer | null>;
  /** Of the text of event_envelope(), in migrations/0001_schema.sql. */
  sha256: GeneratedAlways<Buffer>;
  bytes: GeneratedAlways<number>;
};

/** The columns of every inline read model: one row folds exactly one stream, and `version` is the stream's. */
type StreamFold = {
  id: string;
  workspace_id: string;
  version: number;
  updated_at: Date;
  last_event_id: string | null;
};

/** `allow_config_override` is absent for true. */
export type ApiKeyDefaults = {
  config_id?: string;
  metadata?: Record<string, string>;
  locked_metadata?: Record<string, string>;
  allow_config_override?: false;
  /** Absent: the setting of the workspace applies. */
  record_bodies?: boolean;
};

/** The head of a record of any kind (libs/resources): `kind` is the noun of its events, `data` its fields. */
export type ResourceTable = StreamFold & {
  kind: string;
  slug: string | null;
  /** The value by which a record is found in all workspaces, such as the digest of a key; unique within its kind. */
  lookup: string | null;
  data: Json<Record<string, unknown>>;
  /** The newest version; null for a kind without versions. */
  last_version: number | null;
  created_at: Date;
  deleted_at: Date | null;
};

/** `id` is `<resource>@<number>`; `version` is that of the stream when it was written. */
export type ResourceVersionTable = StreamFold & {
  kind: string;
  resource_id: string;
  number: number;
  data: Json<Record<string, unknown>>;
  created_at: Date;
};

export type SecretTable = {
  id: string;
  workspace_id: string;
  owner_id: string;
  master_key_id: string;
  wrapped_key: Buffer;
  ciphertext: Buffer;
  created_at: Date;
};

export type FileTable = StreamFold & {
  purpose: string;
  filename: string;
  bytes: number;
  sha256: string;
  blob: string;
  created_at: Date;
  expires_at: Date | null;
  deleted_at: Date | null;
};

export type BatchStatus =
  | 'validating'
  | 'failed'
  | 'in_progress'
  | 'finalizing'
  | 'completed'
  | 'expired'
  | 'cancelling'
  | 'cancelled';

export type BatchError = { code: string; message: string; param: string | null; line: number | null };

/**
 * The credential of a batch. `none`: each line names its virtual key. `settings` are the provider's own. `secret_id`
 * refers to the key and the secret settings.
 */
export type BatchCredential =
  | { type: 'none' }
  | { type: 'virtual_key'; virtual_key_id: string }
  | {
      type: 'provider';
      provider: string;
      custom_host: string | null;
      secret_id: string | null;
      settings?: Record<string, string>;
    };

/**
 * The target that a batch uses for its whole life. With a config, `caller` is for targets without their own
 * credentials. A stored config stays at the version of the batch's creation. One that came with the call is stored
 * whole, with its secrets encrypted.
 */
export type BatchTarget =
  | BatchCredential
  | { type: 'config'; config_id: string; config_version: number; secret_id?: string; caller: BatchCredential }
  | { type: 'inline_config'; config: Record<string, unknown>; secret_id: string | null; caller: BatchCredential };

export type BatchUsage = {
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  reasoning_tokens: number;
  /** US cents as a decimal. Absent: no line has a cost yet. */
  cost?: string;
  unpriced_lines?: number;
  /** Lines that were possibly called twice, and the known cost of one of these calls in US cents. Absent: none. */
  repeated_calls?: number;
  repeated_cost?: string;
};

export type BatchTable = StreamFold & {
  endpoint: string;
  completion_window: string;
  input_file_id: string;
  metadata: NullableJson<Record<string, unknown>>;
  target: Json<BatchTarget>;
  gateway_options: Json<Record<string, unknown>>;
  headers: Json<Record<string, string>>;
  output_expires_after_seconds: number | null;
  status: BatchStatus;
  finalizing_reason: 'completed' | 'cancelled' | 'expired' | null;
  errors: NullableJson<BatchError[]>;
  model: string | null;
  chunk_count: number;
  total: number;
  completed: number;
  failed: number;
  usage: Json<BatchUsage>;
  output_checks: NullableJson<{ passed: number; passed_after_retry: number; failed: number }>;
  paused_at: Date | null;
  bound_reached: 'max_cost' | 'max_error_rate' | null;
  output_file_id: string | null;
  error_file_id: string | null;
  created_at: Date;
  expires_at: Date;
  in_progress_at: Date | null;
  finalizing_at: Date | null;
  completed_at: Date | null;
  failed_at: Date | null;
  expired_at: Date | null;
  cancelling_at: Date | null;
  cancelled_at: Date | null;
};

type WorkerProcessTable = {
  id: string;
  beat: Generated<number>;
  os_process: string | null;
  started_at: Generated<Date>;
};

/** The slots of a worker for one kind of work: chunks of lines, and input and result files by their size. */
export type Lane = 'lines' | 'small_files' | 'large_files';

type BatchShareTable = {
  lane: Lane;
  workspace_id: string;
  weight: Generated<number>;
  virtual_time: Generated<number>;
  active: Generated<boolean>;
};

export type BatchTurnTable = {
  batch_id: string;
  workspace_id: string;
  work: 'validate' | 'lines' | 'close' | 'finalise';
  lane: Lane;
  priority: number;
  order_at: Date;
  paused: Generated<boolean>;
  ready: number;
  holder: string | null;
  failures: Generated<number>;
  due_at: Date | null;
};

export type BatchChunkTable = {
  batch_id: string;
  chunk: number;
  byte_offset: number;
  byte_length: number;
  range_first_line: number;
  first_line: number;
  line_count: number;
  state: Generated<'ready' | 'held' | 'waiting' | 'done'>;
  holder: string | null;
  claim: Generated<number>;
  due_at: Date | null;
  settled: Buffer;
  repeated: Buffer | null;
  claim_end: 'stopped' | 'clean' | null;
  settled_before: Generated<number>;
  claims_without_progress: Generated<number>;
  snoozes: Generated<number>;
};

/** Lines of one batch in one worker that wait for the same reason. Times in epoch milliseconds. */
export type LineWait = {
  reason: string;
  label: string | null;
  model: string | null;
  /** For `budget_used_up`: the sentences that name the budget. */
  budget: string | null;
  lines: number;
  since_ms: number;
  until_ms: number | null;
};

export type BatchLineReportTable = {
  batch_id: string;
  process_id: string;
  workspace_id: string;
  calls: number;
  waits: Json<LineWait[]>;
  reported_at: Date;
};

export type BatchResultTable = {
  bucket: string;
  batch_id: string;
  stripe: number;
  first_line: number;
  last_line: number;
  version: number;
  lines: number[];
  lengths: number[];
  statuses: number[];
  digests: Buffer;
  failures: NullableJson<LineFailures[]>;
  data: Buffer | null;
  segment: string | null;
  segment_offset: number | null;
};

/** Lines of a row that failed for the same reason. `message`: that of the first one. */
export type LineFailures = { code: string | null; status: number | null; message: string | null; lines: number[] };

export type FineTuningStatus =
  | 'validating_files'
  | 'queued'
  | 'running'
  | 'paused'
  | 'succeeded'
  | 'failed'
  | 'cancelled';

/**
 * The request that a job was created with, in the form for the provider. Files and metadata are added when it is sent.
 */
export type FineTuningRequest = {
  /** The model in the provider's form; `sent_model` is the name that the caller used, if it differs (`@slug/model`). */
  model: string;
  sent_model?: string;
  /** The slug of the virtual key that the job uses. */
  virtual_key?: string;
  seed: number;
  suffix?: string;
  method?: Record<string, unknown>;
  hyperparameters?: Record<string, unknown>;
  integrations?: Record<string, unknown>[];
};

export type FineTuningError = { code: string; message: string; param: string | null };

export type FineTuningJobTable = StreamFold & {
  request: Json<FineTuningRequest>;
  training_file_id: string;
  validation_file_id: string | null;
  metadata: NullableJson<Record<string, string>>;
  target: Json<BatchTarget>;
  status: FineTuningStatus;
  /** Accepted here, but not yet confirmed by the provider. */
  requested: 'cancel' | 'pause' | 'resume' | null;
  /** The provider's IDs. Once those of the files exist, a create call may have been sent. */
  provider_training_file_id: string | null;
  provider_validation_file_id: string | null;
  provider_job_id: string | null;
  method: Json<Record<string, unknown>>;
  hyperparameters: Json<Record<string, unknown>>;
  fine_tuned_model: string | null;
  trained_tokens: number | null;
  /** Unix seconds. */
  estimated_finish: number | null;
  result_files: Json<string[]>;
  error: NullableJson<FineTuningError>;
  created_at: Date;
  accepted_at: Date | null;
  finished_at: Date | null;
};

/** The last report of a process about its rows in the request log, from `heard_at` (libs/request-log). */
export type RequestLogProcessTable = {
  process_id: string;
  app: string;
  started_at: Date;
  heard_at: Date;
  last_sequence: number;
  written_sequence: number;
  lost_rows: number;
  stopped_at: Date | null;
  version: string;
  host: string;
};

/** Minutes of the request log with rows that rollups do not have yet (libs/request-log/write/log-change.ts). */
type RequestLogChangeTable = { id: GeneratedAlways<number>; first_at: Date; last_at: Date };

/** A blob with bodies of calls (libs/request-log/bodies/body-recorder.ts). */
export type RecordedBodiesTable = {
  id: string;
  workspace_id: string;
  blob: string;
  /** The start of each call's bodies in the blob, and the end of the last. */
  offsets: number[];
  key_owner: string;
  size_bytes: number;
  created_at: Generated<Date>;
  expires_at: Date;
};

export type UploadTable = {
  id: string;
  workspace_id: string;
  filename: string;
  purpose: string;
  mime_type: string;
  bytes: number;
  /** 64 hex digits; null: the client did not send it. */
  sha256: string | null;
  /** The lifetime of the file, in seconds from its creation; null: it never expires. */
  expires_after: number | null;
  status: 'pending' | 'completed' | 'cancelled';
  file_id: string | null;
  created_at: Generated<Date>;
  expires_at: Date;
};

export type UploadPartTable = {
  id: string;
  upload_id: string;
  workspace_id: string;
  blob: string;
  bytes: number;
  sha256: string;
  created_at: Generated<Date>;
};

/** One finished blob of an export, of which `rows` are in the file. */
export type LogExportPartTable = {
  workspace_id: string;
  export_id: string;
  part: number;
  blob: string;
  size_bytes: number;
  rows: number;
  /** Matching rows before the export's page, counted up to this part. */
  skipped: number;
  last_id: string | null;
  created_at: Generated<Date>;
};

/** An event for a webhook endpoint. Primary data, not derived from events. */
export type WebhookDeliveryTable = {
  id: string;
  workspace_id: string;
  endpoint_id: string;
  event_id: string;
  type: string;
  object_id: string;
  created_at: Date;
  attempts: number;
  last_attempt_at: Date | null;
  last_status: number | null;
  last_error: string | null;
  /** Null when no further attempt follows. */
  next_attempt_at: Date | null;
  retry_until: Date;
  delivered_at: Date | null;
};

/** How far events were pushed to a SIEM destination (libs/siem). Primary data, not derived from events. */
type SiemCursorTable = {
  destination_id: string;
  workspace_id: string;
  epoch: number;
  transaction_id: string;
  position: number;
  sent_call: string | null;
  claims: Generated<number>;
  next_attempt_at: Generated<Date>;
  failures: Generated<number>;
  last_error: string | null;
  dropped: Generated<number>;
  sent_at: Date | null;
};

/** Feedback of API users and guardrails on a trace (libs/analytics). Primary data, not derived from events. */
export type FeedbackTable = {
  id: string;
  workspace_id: string;
  trace_id: string;
  value: number;
  /** A decimal. */
  weight: string;
  metadata: NullableJson<Record<string, unknown>>;
  source: 'api' | 'guardrail';
  key_id: string | null;
  created_at: Date;
  updated_at: Date;
};

/** Calls of one minute, hour or day with the same values of all columns that analytics filters by (libs/analytics). */
type CallRollupTable = {
  grain: 'minute' | 'ten_minutes' | 'hour' | 'day';
  bucket: Date;
  workspace_id: string;
  requests: number;
};

/** The progress of the rollups, and the lease of the process that writes them. */
type RollupStateTable = {
  id: Generated<boolean>;
  minutes_from: Date;
  hours_from: Date;
  hours_until: Date;
  days_from: Date;
  days_until: Date;
  rolled_up_at: Date | null;
  tens_from: Generated<Date>;
  tens_until: Generated<Date>;
};

/** The metadata keys for which a workspace has rollups (libs/analytics/rollups/rollup-keys.ts). */
type RollupKeyTable = { workspace_id: string; key: string; from_at: Date; seen_on: string };

export type CommandResultTable = {
  workspace_id: string;
  key_id: string;
  route: string;
  idempotency_key: string;
  fingerprint: string;
  status: number;
  body: Json<Record<string, unknown>>;
  recorded_at: Date;
  /** The last attempt of the call that was answered with it; 0 is the first. */
  retry_count: ColumnType<number, number | undefined, number>;
};

/** Cached answers of providers (libs/calls/protect/response-cache); `head` is its EntryHead. */
export type ResponseCacheTable = {
  workspace_id: string;
  key: Buffer;
  head: Json<CachedAnswerHead>;
  body: Buffer;
  size_bytes: number;
  created_at: Date;
  expires_at: Date;
};

export type CachedAnswerHead = {
  kind: 'json' | 'stream';
  hasUsageChunk: boolean;
  contentType: string;
  model: string | null;
  finishReason: string | null;
  usage: Usage | null;
};

/** Open circuits, shared by all processes (libs/calls/protect/traffic). */
export type ProviderCircuitTable = {
  id: string;
  workspace_id: string;
  credential_id: string;
  label: string;
  provider: string;
  model: string;
  opened_at: Date;
  open_until: Date;
  failures: number;
  reason: string;
};

/** Which workspace created which object in an account that workspaces share (libs/calls/protect/stored-objects). */
type StoredObjectTable = {
  account_id: string;
  object_id: string;
  workspace_id: string;
  kind: string;
  created_at: Generated<Date>;
};

/** The tokens that were counted for objects whose usage is known later (libs/policies/late-usage.ts). */
type LateUsageTable = {
  workspace_id: string;
  object_id: string;
  input_tokens: number;
  output_tokens: number;
  created_at: Generated<Date>;
};

/** The position of a subscriber in the log, and the error that stopped it (libs/event-log/subscriber.ts). */
type SubscriptionCheckpointTable = {
  name: string;
  epoch: Generated<number>;
  transaction_id: string;
  position: number;
  failures: Generated<number>;
  last_error: string | null;
  retry_at: Date | null;
  moved_at: Date | null;
};

/** How far the log is sealed (libs/seal). */
type SealTable = {
  id: ColumnType<boolean, never, never>;
  tree: number;
  name: string;
  epoch: number;
  size: number;
  hashes: Buffer;
  bundle: Buffer;
  checkpoint: string;
  holder: string | null;
  held_until: Date;
  unpublished_since: Date | null;
  publish_after: Date;
};

/**
 * Records who changed what, when, and from where. Written by a subscriber (libs/activity). `id` is that of the event.
 */
export type ActivityTable = {
  id: string;
  workspace_id: string;
  recorded_at: Date;
  action: string;
  resource_type: string;
  resource_id: string;
  actor_type: string;
  actor_id: string;
  principal_id: string | null;
  request_id: string | null;
  trace_id: string | null;
  address: string | null;
  method: string | null;
  uri: string | null;
  status: number | null;
};

/**
 * The use of one limit in its period, for one value that it is grouped by (libs/limits/counter.ts). Amounts are
 * decimals as text: US cents, tokens or requests.
 */
export type LimitCounterTable = {
  id: string;
  workspace_id: string;
  limit_id: string;
  value_key: string;
  kind: 'budget' | 'rate';
  /** The maximum at the last change. The limit itself defines the value that applies. */
  max: string;
  period_start: Date;
  /** null: the counter never restarts. */
  period_end: Date | null;
  used: string;
  assumed: string;
  unconfirmed: Generated<string>;
  unpriced: number;
  is_alerted: boolean;
  leases: Json<Record<string, object>>;
  reset_at: Date | null;
  created_at: Generated<Date>;
  updated_at: Date;
};

export type CallLimitTable = {
  id: string;
  workspace_id: string;
  credential_id: string;
  model: string;
  /** How many calls can be in flight in all processes. */
  learned: number;
  is_answered: boolean;
  rejected_at: Date | null;
  burst: Json<object> | null;
  limited_until: Date | null;
  shares: Json<Record<string, object>>;
  updated_at: Date;
};

/** The tables of `migrations/`, as Kysely sees them. */
export type Database = {
  event: EventTable;
  event_epoch: { epoch: number; raised_at: Date };
  subscription_checkpoint: SubscriptionCheckpointTable;
  seal: SealTable;
  seal_workspace: { workspace_id: string; number: number; sha256: Buffer };
  seal_place: { epoch: number; transaction_id: string; position: number; tree: number; index: number };
  activity: ActivityTable;
  command_result: CommandResultTable;
  installation: { name: string; value: string };
  resource: ResourceTable;
  resource_version: ResourceVersionTable;
  secret: SecretTable;
  access_version: { id: ColumnType<boolean, never, never>; version: number };
  file: FileTable;
  batch: BatchTable;
  batch_chunk: BatchChunkTable;
  batch_share: BatchShareTable;
  batch_turn: BatchTurnTable;
  worker_process: WorkerProcessTable;
  batch_result: BatchResultTable;
  batch_line_report: BatchLineReportTable;
  fine_tuning_job: FineTuningJobTable;
  request_log: RequestLogTable & { first_id: string; last_id: string };
  request_log_row: RequestLogTable;
  request_log_pack: RequestLogPackTable;
  request_log_process: RequestLogProcessTable;
  request_log_change: RequestLogChangeTable;
  call_seal: { event_id: string; workspace_id: string; first_id: string; last_id: string; hashes: Buffer };
  call_seal_due: RequestLogChangeTable;
  call_seal_position: { workspace_id: string; process_id: string; sequence: number };
  request_log_day: { process_id: string; recorded_on: string; first_sequence: number };
  request_log_deleted: { workspace_id: string; recorded_on: string; process_id: string; sequences: string };
  response_cache: ResponseCacheTable;
  provider_circuit: ProviderCircuitTable;
  stored_object: StoredObjectTable;
  late_usage: LateUsageTable;
  feedback: FeedbackTable;
  log_export_part: LogExportPartTable;
  webhook_delivery: WebhookDeliveryTable;
  siem_cursor: SiemCursorTable;
  recorded_bodies: RecordedBodiesTable;
  upload: UploadTable;
  upload_part: UploadPartTable;
  call_rollup: CallRollupTable;
  metadata_rollup: CallRollupTable & { key: string; value: string | null };
  value_rollup: CallRollupTable & { key: string; value: string | null };
  rollup_state: RollupStateTable;
  rollup_key: RollupKeyTable;
  limit_counter: LimitCounterTable;
  call_limit: CallLimitTable;
};
