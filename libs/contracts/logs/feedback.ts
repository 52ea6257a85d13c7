import { z } from 'zod';
import { decimal, integer, text } from '../scalars.ts';

// POST /feedback and PUT /feedback/{id}: feedback on the answers of a trace.

const metadataBytesMax = 16_384;

const value = () => integer({ min: -10, max: 10 }).describe('The rating, from -10 to 10.');
const weight = () => decimal(0, 1).describe('The weight of the rating, from 0 to 1.');
const metadata = () =>
  z
    .record(z.string(), z.unknown())
    .refine((members) => JSON.stringify(members).length <= metadataBytesMax, {
      message: `must be at most ${metadataBytesMax} characters of JSON`,
    })
    .nullable();
const trace = () => text({ min: 1, max: 256 }).describe('The ID of a trace. Its calls can be recorded later.');

/** Clients of the interface send `traceID` too. */
const FeedbackItem = z
  .object({
    trace_id: trace().optional(),
    traceID: trace().optional().describe('The same as trace_id.'),
    value: value(),
    weight: weight().default(1),
    metadata: metadata().optional(),
  })
  .refine((item) => (item.trace_id === undefined) !== (item.traceID === undefined), {
    message: 'expected either trace_id or traceID, not both',
    path: ['trace_id'],
  });

/** Portkey's client sends a list as an object of the same items: `{"0": …, "1": …}`. */
const listOfMembers = (body: unknown): unknown => {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) return body;
  const names = Object.keys(body);
  return names.length > 0 && names.every((name, index) => name === String(index)) ? Object.values(body) : body;
};

export const FeedbackBody = z.preprocess(listOfMembers, z.union([FeedbackItem, z.array(FeedbackItem).min(1).max(100)]));
export type FeedbackBody = z.output<typeof FeedbackBody>;

/** `feedback_id` repeats the path. */
export const FeedbackChange = z.object({
  value: value(),
  weight: weight().optional(),
  metadata: metadata().optional(),
  feedback_id: z.string().optional().describe('Optional. Must be the ID in the path.'),
  trace_id: z.string().optional().describe('Accepted, but feedback cannot be moved to another trace.'),
});

export const FeedbackAnswer = z.object({
  status: z.literal('success'),
  message: z.string(),
  feedback_ids: z.array(z.string()),
  feedback_id: z.array(z.string()).describe('The same as feedback_ids.'),
});
