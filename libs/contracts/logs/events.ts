import { z } from 'zod';
import { moment } from './call-filters.ts';
import { cursor, listOf, optionalInteger, queryInteger } from '../lists.ts';
import { text } from '../scalars.ts';

/** `GET /events`: the event log of a workspace, oldest first. */
export const EventListQuery = z.object({
  stream: text({ min: 1, max: 200 }).optional().describe('the id of a record, such as batch_…: only its events'),
  type: text({ min: 1, max: 200 }).optional().describe('an event type, such as api_key.created'),
  after: cursor().describe('the last_id of the page before'),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
});

export const EventObject = z.object({
  id: z.string(),
  object: z.literal('event'),
  type: z.string(),
  stream: z.string().describe('the id of the record that the event belongs to'),
  stream_version: z.int().describe('counts the events of the stream from 1'),
  schema_version: z.int().describe('of the shape of data'),
  data: z.record(z.string(), z.unknown()),
  metadata: z.looseObject({
    actor: z.object({
      type: z.string().describe('api_key, user or system'),
      id: z.string(),
      principal: z
        .object({
          type: z.string(),
          id: z.string(),
          role: z.string().nullable(),
          organisation_role: z.string().optional(),
        })
        .optional()
        .describe('the owner of the key, or the user who signed in; absent for the system'),
      workspace_id: z.string().optional().describe('of the key'),
      scopes: z.array(z.string()).readonly().nullish().describe('of the key at that time; null for all of them'),
    }),
    request_id: z.string().optional(),
    trace_id: z.string().optional(),
    address: z.string().optional(),
  }),
  recorded_at: z.string().describe('ISO 8601 with milliseconds'),
  sha256: z.string().describe('SHA-256 of the canonical JSON of the event as it was written'),
});
export type EventObject = z.output<typeof EventObject>;

export const EventList = listOf(EventObject).extend({
  last_id: z
    .string()
    .nullable()
    .describe('read on after this; with a type, a page that is not full or empty can still have more after it'),
});

/** `GET /events/replay`: without a moment, the newest. */
export const ReplayQuery = z.object({
  stream: text({ min: 1, max: 200 }).describe('the id of a record, such as batch_…'),
  version: optionalInteger({ min: 1, max: Number.MAX_SAFE_INTEGER }).describe(
    'after this event of the record, counted from 1',
  ),
  at: moment().optional().describe('at this time: ISO 8601 or Unix seconds'),
});

export const RecordState = z.object({
  object: z.literal('record.state'),
  stream: z.string(),
  version: z.int().describe('the number of events that it is made of'),
  event: z.object({ id: z.string(), type: z.string() }).describe('the last of them'),
  recorded_at: z.string().describe('ISO 8601'),
  is_newest: z.boolean().describe('whether nothing happened to it since'),
  state: z.record(z.string(), z.unknown()).describe('what the record was, without secrets'),
});
