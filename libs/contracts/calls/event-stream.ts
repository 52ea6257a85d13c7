import { z } from 'zod';
import { cursor } from '../lists.ts';
import { eventRange } from '../logs/events.ts';
import { text } from '../scalars.ts';

/** `GET /events/stream`: the events of a workspace as they happen. */
export const EventStreamQuery = z.object({
  ...eventRange,
  stream: text({ min: 1, max: 200 })
    .optional()
    .describe('The ID of a record, such as batch_…. Returns only its events.'),
  after: cursor().describe(
    'The ID of an event. The stream starts with the events after it, then continues with new ones. The header Last-Event-ID, which browsers send when they reconnect, takes precedence. Without either, or a `start_time`, the stream has only new events.',
  ),
  calls: z
    .enum(['true', 'false'])
    .optional()
    .describe(
      'If true, the stream also sends an event named `calls` with the ID of the newest record when the request log has new records, at most once a second.',
    ),
});
export type EventStreamQuery = z.output<typeof EventStreamQuery>;
