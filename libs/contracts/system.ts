import { z } from 'zod';

/** The last comparison of the read models with the event log that somebody asked for. */
export const ModelCheck = z.object({
  object: z.literal('read_model_check'),
  /** `waiting`: no worker has begun it yet. */
  state: z.enum(['waiting', 'running', 'equal', 'different', 'failed']),
  asked_at: z.iso.datetime(),
  ended_at: z.iso.datetime().nullable(),
  events: z.int().describe('how many events were folded so far'),
  problem: z.string().nullable().describe('the first row that differs, or what went wrong'),
});
export type ModelCheck = z.output<typeof ModelCheck>;

const Process = z.object({
  id: z.string(),
  app: z.string().describe('`api` or `worker`'),
  version: z.string(),
  host: z.string(),
  state: z
    .enum(['running', 'silent', 'stopped'])
    .describe('silent: without an orderly stop, it has said nothing for 45 s'),
  started_at: z.iso.datetime(),
  heard_at: z.iso.datetime(),
  stopped_at: z.iso.datetime().nullable(),
  unwritten_log_records: z.int().describe('records of the request log that it had not written when it was last heard'),
  lost_log_records: z.int(),
});

const Queue = z.object({
  name: z.string(),
  ready: z.int(),
  active: z.int(),
  deferred: z.int(),
  oldest_seconds: z.number().describe('how long the oldest job that could start has waited; 0 if none waits'),
});

const SubscriberObject = z.object({
  name: z.string(),
  events_behind: z.int().describe('counted up to 10,000'),
  seconds_behind: z.number(),
  failures: z.int().describe('failed attempts in a row'),
  last_error: z.string().nullable(),
});

/** The installation as GET /admin/system answers it. */
export const SystemObject = z.object({
  object: z.literal('system'),
  version: z.string().describe('of the process that answers'),
  processes: z.array(Process).describe('those that run, and those that were heard within the last hour'),
  queues: z.array(Queue),
  subscribers: z.array(SubscriberObject),
  rollups: z.object({ seconds_behind: z.number(), groups_waiting: z.int() }),
  open_batches: z.record(z.string(), z.int()).describe('by status'),
  database: z.object({
    version: z.string(),
    size_bytes: z.int(),
    connections: z.int(),
    connections_max: z.int(),
    tables: z.array(z.object({ name: z.string(), size_bytes: z.int() })).describe('the ten largest'),
  }),
  event_log: z.object({
    events: z.int().describe('the position of the newest one, which is about how many there are'),
    seconds_behind: z.number().describe('age of the oldest event that an open transaction keeps from being read'),
    last_event_at: z.iso.datetime().nullable(),
  }),
  read_model_check: ModelCheck.nullable(),
});
export type SystemObject = z.output<typeof SystemObject>;
