import { webhookEndpointFields, WebhookEndpointObject } from '#libs/contracts/webhooks.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { asJson } from '#libs/records/resource-row.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import { seconds, storedSecrets, type NewSecret, type WebhookEndpointData } from './webhook-data.ts';
import { webhookRoutes } from './webhook-routes.ts';

/** The maximum number of endpoints in a workspace. Each event is sent to all of them. */
const endpointsMax = 10;

/** A receiver of events, at OpenAI's paths and in the form of its clients. */
export const webhookEndpointKind = defineKind<typeof webhookEndpointFields, WebhookEndpointData>({
  noun: 'webhook_endpoint',
  idPrefix: 'whe_',
  area: 'webhooks',
  texts: {
    create: {
      description:
        "Registers a URL that is called when a batch or a fine-tuning job ends, as OpenAI's webhooks are. The answer " +
        'contains the signing secret, which is not shown again.',
      example: {
        name: 'Results',
        url: 'https://app.example.com/hooks',
        event_types: ['batch.completed', 'batch.failed'],
      },
      errors: { destination_not_allowed: 'the address of `url` is private or reserved' },
    },
    update: {
      description: 'Applies to the next attempt of every delivery.',
      example: { event_types: ['batch.completed'] },
      errors: { destination_not_allowed: 'the address of `url` is private or reserved' },
    },
    delete: { description: 'Pending deliveries end.' },
  },
  path: '/v1/webhook_endpoints',
  names: {
    one: 'webhook endpoint',
    many: 'webhook endpoints',
    command: 'webhooks',
    tag: 'Webhooks',
    about: 'URLs that are called when batches and fine-tuning jobs end, and the deliveries to them.',
    object: 'webhook_endpoint',
  },
  fields: webhookEndpointFields,
  creation: {
    limit: () => ({ max: endpointsMax }),
    shownOnce: 'whose signing secret was returned once. If it was not received, rotate the secret.',
  },
  changes: { byPost: true },
  history: { events: { disabled: (data) => ({ ...data, status: 'disabled' }) } },

  async check(input, context) {
    const { new_secret: rotated, ...fields } = input as typeof input & { new_secret?: NewSecret };
    if (fields.url !== undefined) context.checkDestination(new URL(fields.url));
    const { data, ...secrets } = await storedSecrets(rotated, context);
    return { ...secrets, data: { ...(asJson(fields) as Partial<WebhookEndpointData>), ...data } };
  },

  view: ({ workspace_id, data, created_at, updated_at }) => ({
    name: data.name,
    url: data.url,
    event_types: data.event_types,
    status: data.status,
    signing_secret_hint: data.signing_secret_hint,
    workspace_id,
    created_at: seconds(created_at),
    updated_at: seconds(updated_at),
  }),
  viewSchema: WebhookEndpointObject,

  routes: webhookRoutes,
});

export const webhookEndpointModel = resourceModel([webhookEndpointKind]);
