import { z } from 'zod';
import { moment } from './call-filters.ts';
import { cursor, listOf, optionalInteger, queryInteger } from '../lists.ts';
import { addBreach, text } from '../scalars.ts';

const workspaceId = () =>
  text({ min: 1, max: 500 })
    .optional()
    .describe('An ID or slug, or org_default for events of the organisation. Default: the workspace of the key.');

/** Which part of the event log is read. */
export const eventRange = {
  workspace_id: workspaceId(),
  start_time: moment().optional().describe('Recorded at or after this time, in ISO 8601 or Unix seconds.'),
  end_time: moment().optional().describe('Recorded at or before this time.'),
};

/** `GET /events`: the event log of a workspace, oldest first. */
export const EventListQuery = z.object({
  ...eventRange,
  stream: text({ min: 1, max: 200 })
    .optional()
    .describe('The ID of a record, such as batch_…. Returns only its events.'),
  type: text({ min: 1, max: 200 }).optional().describe('An event type, such as api_key.created.'),
  after: cursor().describe('The last_id of the previous page.'),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
});

const EventActor = z.object({
  type: z.string().describe('`api_key`, `user` or `system`.'),
  id: z.string(),
  principal: z
    .object({
      type: z.string(),
      id: z.string(),
      role: z.string().nullable(),
      organisation_role: z.string().optional(),
    })
    .optional()
    .describe('The owner of the key, or the user who signed in. Absent for the system.'),
  workspace_id: z.string().optional().describe('The workspace of the key.'),
  scopes: z.array(z.string()).readonly().nullish().describe('The scopes of the key at that time. Null for all scopes.'),
  user: z.string().optional().describe("Of an operator's command: the user of the operating system."),
  host: z.string().optional().describe("Of an operator's command: the host that it ran on."),
});

export const EventObject = z.object({
  id: z.string(),
  object: z.literal('event'),
  type: z.string(),
  workspace_id: z.string(),
  stream: z.string().describe('The ID of the record that the event belongs to.'),
  stream_version: z.int().describe('The number of the event in its stream, starting at 1.'),
  schema_version: z.int().describe('The schema version of `data`.'),
  data: z.record(z.string(), z.unknown()),
  metadata: z.looseObject({
    actor: EventActor,
    request_id: z.string().optional(),
    trace_id: z.string().optional(),
    address: z.string().optional(),
    causation_id: z.string().optional().describe('The ID of the event that caused this one.'),
    correlation_id: z
      .string()
      .optional()
      .describe(
        'The batch or fine-tuning job that the event belongs to. An endpoint names what it was informed about.',
      ),
  }),
  recorded_at: z.string().describe('ISO 8601 with milliseconds'),
  sha256: z
    .string()
    .describe(
      'The SHA-256 of the canonical JSON (RFC 8785) of `data_sha256`, `event_id`, `form` (2), `metadata_sha256`, ' +
        '`recorded_at`, `schema_version`, `stream_id`, `stream_version`, `type` and `workspace_id`.',
    ),
  data_sha256: z
    .string()
    .describe('The SHA-256 of `data_salt` (16 bytes) and the canonical JSON of the recorded data.'),
  data_salt: z
    .string()
    .nullable()
    .describe('Hexadecimal. Null if `data` is not exactly what was recorded: it is without secrets, or was erased.'),
  metadata_sha256: z.string().describe('The SHA-256 of `metadata_salt` and the canonical JSON of `metadata`.'),
  metadata_salt: z.string().nullable().describe('Null if a part of `metadata` was erased.'),
});
export type EventObject = z.output<typeof EventObject>;

export const EventList = listOf(EventObject).extend({
  last_id: z
    .string()
    .nullable()
    .describe(
      'Send it as `after` to continue. With a type filter, a page that is not full can still be followed by more events.',
    ),
});

/** `GET /events/replay`. Without a moment, the newest state. */
export const ReplayQuery = z.object({
  stream: text({ min: 1, max: 200 }).describe('The ID of a record, such as batch_….'),
  version: optionalInteger({ min: 1, max: Number.MAX_SAFE_INTEGER }).describe(
    'The state after this event of the record, counted from 1.',
  ),
  workspace_id: workspaceId(),
  at: moment().optional().describe('The state at this time, in ISO 8601 or Unix seconds.'),
});

/** The state of a record after this version of it, or at this time. */
const versionOrTime = () =>
  text({ min: 1, max: 40 }).transform((given, context): { version: number } | { at: Date } => {
    if (/^\d{1,15}$/.test(given)) return { version: Number(given) };
    const { data: at } = moment().safeParse(given);
    if (at !== undefined) return { at };
    addBreach(context, {
      path: [],
      code: 'invalid_value',
      text: (name) => `Invalid ${name()}: expected the version of a record, such as 3, or a time in ISO 8601.`,
    });
    return z.NEVER;
  });

/** `GET /events/diff`. */
export const DiffQuery = z.object({
  stream: text({ min: 1, max: 200 }).describe('The ID of a record, such as batch_….'),
  from: versionOrTime()
    .optional()
    .describe('A `stream_version`, or a time in ISO 8601. Default: before the first event.'),
  to: versionOrTime().optional().describe('In the same form. Default: now.'),
  workspace_id: workspaceId(),
});

export const RecordDiff = z.object({
  object: z.literal('record.diff'),
  stream: z.string(),
  from: z
    .object({ version: z.int(), recorded_at: z.string().nullable() })
    .describe('The last event up to the earlier moment. Version 0 if the record did not exist yet.'),
  to: z.object({ version: z.int(), recorded_at: z.string() }).describe('The last event up to the later moment.'),
  is_newest: z.boolean().describe('Whether the later state is the current one.'),
  patch: z
    .array(z.object({ op: z.enum(['add', 'remove', 'replace']), path: z.string(), value: z.unknown().optional() }))
    .describe('JSON Patch (RFC 6902) from the earlier `state` to the later one, without secrets.'),
  changes: z
    .array(
      z.object({
        path: z.string().describe('The member of `state`, as a JSON Pointer.'),
        count: z.int().describe('The number of events that changed it.'),
        events: z
          .array(
            z.object({
              id: z.string(),
              type: z.string(),
              stream_version: z.int(),
              recorded_at: z.string(),
              actor: EventActor,
            }),
          )
          .describe('The last of these events, at most ten, oldest first.'),
      }),
    )
    .describe('The events behind each member that the patch changes.'),
});

export const RecordState = z.object({
  object: z.literal('record.state'),
  stream: z.string(),
  version: z.int().describe('The number of events applied.'),
  event: z.object({ id: z.string(), type: z.string() }).describe('The last event applied.'),
  recorded_at: z.string().describe('ISO 8601'),
  is_newest: z.boolean().describe('Whether this is the current state.'),
  state: z.record(z.string(), z.unknown()).describe('The record at that moment, without secrets.'),
});

/** `GET /events/records`, without `kind`. */
export const RecordListQuery = z.object({
  at: moment().optional().describe('The records at this time, in ISO 8601 or Unix seconds. Default: now.'),
  workspace_id: workspaceId(),
  after: cursor().describe('The last_id of the previous page.'),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
});

export const RecordList = listOf(RecordState);
