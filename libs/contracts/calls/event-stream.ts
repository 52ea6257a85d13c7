import { z } from 'zod';
import { cursor } from '../lists.ts';
import { text } from '../scalars.ts';

/** `GET /events/stream`: the events of a workspace as they happen. */
export const EventStreamQuery = z.object({
  stream: text({ min: 1, max: 200 }).optional().describe('the id of a record, such as batch_…: only its events'),
  after: cursor().describe(
    'the id of an event: those after it come first, then new ones. The header Last-Event-ID, which browsers send when they connect again, counts instead. Without either: new ones only',
  ),
  calls: z
    .enum(['true', 'false'])
    .optional()
    .describe(
      'true: also an event named `calls` when the request log has new records, at most once a second, with the id of the newest',
    ),
});
export type EventStreamQuery = z.output<typeof EventStreamQuery>;
