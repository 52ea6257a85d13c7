import { z } from 'zod';
import { MessageRequest } from '../calls/messages.ts';
import { AnthropicPageQuery } from '../calls/models.ts';

// Message Batches (platform.claude.com/docs, "Batch processing").

/** For the document: the requests are read one by one while they arrive, and checked like the lines of a batch. */
export const MessageBatchRequest = z.object({
  requests: z.array(z.looseObject({ custom_id: z.string().min(1), params: MessageRequest })).min(1),
});

const time = z.iso.datetime().nullable();

export const MessageBatch = z.object({
  id: z.string(),
  type: z.literal('message_batch'),
  processing_status: z.enum(['in_progress', 'canceling', 'ended']),
  request_counts: z.object({
    processing: z.int(),
    succeeded: z.int(),
    errored: z.int(),
    canceled: z.int(),
    expired: z.int(),
  }),
  created_at: z.iso.datetime(),
  expires_at: z.iso.datetime(),
  ended_at: time,
  cancel_initiated_at: time,
  archived_at: time,
  results_url: z.url().nullable(),
});
export type MessageBatch = z.output<typeof MessageBatch>;

export const MessageBatchListQuery = z.object(AnthropicPageQuery);

export const MessageBatchList = z.object({
  data: z.array(MessageBatch),
  has_more: z.boolean(),
  first_id: z.string().nullable(),
  last_id: z.string().nullable(),
});

export const DeletedMessageBatch = z.object({ id: z.string(), type: z.literal('message_batch_deleted') });
