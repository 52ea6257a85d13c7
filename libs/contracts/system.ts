import { z } from 'zod';

/** The last requested comparison of the read models with the event log. */
export const ModelCheck = z.object({
  object: z.literal('read_model_check'),
  /** `waiting`: no worker has begun it yet. */
  state: z.enum(['waiting', 'running', 'equal', 'different', 'failed']),
  asked_at: z.iso.datetime(),
  ended_at: z.iso.datetime().nullable(),
  events: z.int().describe('The number of events checked so far.'),
  problem: z.string().nullable().describe('The first row that differs, or the reason for the failure.'),
});
export type ModelCheck = z.output<typeof ModelCheck>;

const Process = z.object({
  id: z.string(),
  app: z.string().describe('`api` or `worker`'),
  version: z.string(),
  host: z.string(),
  state: z
    .enum(['running', 'silent', 'stopped'])
    .describe('`silent` if it has sent no heartbeat for 45 s and did not shut down.'),
  started_at: z.iso.datetime(),
  heard_at: z.iso.datetime(),
  stopped_at: z.iso.datetime().nullable(),
  unwritten_log_records: z.int().describe('Request-log records that were not written at its last heartbeat.'),
  lost_log_records: z.int(),
});

const Queue = z.object({
  name: z.string(),
  ready: z.int(),
  active: z.int(),
  deferred: z.int(),
  oldest_seconds: z.number().describe('How long the oldest ready job has waited. 0 if none is waiting.'),
});

const SubscriberObject = z.object({
  name: z.string(),
  events_behind: z.int().describe('Counted up to 10,000.'),
  seconds_behind: z.number(),
  failures: z.int().describe('Consecutive failed attempts.'),
  last_error: z.string().nullable(),
});

/** The installation, as in the answer of GET /admin/system. */
export const SystemObject = z.object({
  object: z.literal('system'),
  version: z.string().describe('The release of the process that answers this request.'),
  processes: z.array(Process).describe('Processes with a heartbeat within the last hour.'),
  queues: z.array(Queue),
  subscribers: z.array(SubscriberObject),
  rollups: z.object({ seconds_behind: z.number(), groups_waiting: z.int() }),
  open_batches: z.record(z.string(), z.int()).describe('The number of open batches by status.'),
  database: z.object({
    version: z.string(),
    size_bytes: z.int(),
    connections: z.int(),
    connections_max: z.int(),
    tables: z.array(z.object({ name: z.string(), size_bytes: z.int() })).describe('The ten largest tables.'),
  }),
  event_log: z.object({
    events: z.int().describe('The position of the newest event, which approximates their number.'),
    seconds_behind: z.number().describe('The age of the oldest event that an open transaction keeps from being read.'),
    last_event_at: z.iso.datetime().nullable(),
  }),
  read_model_check: ModelCheck.nullable(),
});
export type SystemObject = z.output<typeof SystemObject>;
