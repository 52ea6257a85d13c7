import { z } from 'zod';
import { text } from './scalars.ts';

/** The types of OpenAI's webhook events that this platform sends. */
export const webhookEventTypes = [
  'batch.completed',
  'batch.failed',
  'batch.expired',
  'batch.cancelled',
  'fine_tuning.job.succeeded',
  'fine_tuning.job.failed',
  'fine_tuning.job.cancelled',
] as const;
export type WebhookEventType = (typeof webhookEventTypes)[number];

/** Members of the body of POST /webhook_endpoints. */
export const webhookEndpointFields = {
  name: text({ min: 1, max: 200 }),
  url: z
    .url({ protocol: /^https?$/ })
    .max(2_048)
    .describe(
      'Where events are sent. It is shown to everyone who can read the endpoint, so it must not contain a secret.',
    ),
  event_types: z.array(z.enum(webhookEventTypes)).min(1).max(50),
  status: z
    .enum(['enabled', 'disabled'])
    .default('enabled')
    .describe('A disabled endpoint gets no events. An answer with status 410 disables it.'),
};

/** Times in Unix seconds, as OpenAI's clients expect them. */
export const WebhookEndpointObject = z.object({
  id: z.string(),
  object: z.literal('webhook_endpoint'),
  name: z.string(),
  url: z.string(),
  event_types: z.array(z.string()),
  status: z.enum(['enabled', 'disabled']),
  signing_secret: z.string().optional().describe('Only in the answer that creates the endpoint.'),
  signing_secret_hint: z.string(),
  workspace_id: z.string(),
  created_at: z.int(),
  updated_at: z.int(),
});

/** Body of POST /webhook_endpoints/{id}/rotate_secret. */
export const RotateSecretRequest = z
  .strictObject({
    keep_old_secret_active_for_24_hours: z
      .boolean()
      .default(false)
      .describe('Whether deliveries are also signed with the previous secret for 24 hours.'),
  })
  .optional();

export const deliveryStatus = z.enum(['pending', 'succeeded', 'failed']);

/** Times in Unix seconds. */
export const WebhookDeliveryObject = z.object({
  id: z.string(),
  object: z.literal('webhook_endpoint.delivery'),
  webhook_endpoint_id: z.string(),
  event_id: z
    .string()
    .describe('The `webhook-id` header and the `id` of the body, which stay the same in all attempts.'),
  event_type: z.string(),
  data: z.object({ id: z.string().describe('The ID of the batch or fine-tuning job.') }),
  status: deliveryStatus,
  attempts: z.int(),
  last_status_code: z.int().nullable().describe('The status of the last answer; null if there was none.'),
  last_error: z.string().nullable().describe('Why the last attempt failed, or why there was none.'),
  last_attempt_at: z.int().nullable(),
  next_attempt_at: z.int().nullable(),
  delivered_at: z.int().nullable(),
  created_at: z.int(),
});
