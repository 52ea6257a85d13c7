import { sql, type Selectable } from 'kysely';
import { z } from 'zod';
import { listOf, ListQuery } from '#libs/contracts/lists.ts';
import {
  deliveryStatus,
  RotateSecretRequest,
  WebhookDeliveryObject,
  WebhookEndpointObject,
} from '#libs/contracts/webhooks.ts';
import type { WebhookDeliveryTable } from '#libs/database/schema.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { ResourceStore, RouteKit } from '#libs/records/kit.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import { createSigningSecret } from './post-signed.ts';
import { seconds, webhookId, type NewSecret, type WebhookEndpointData } from './webhook-data.ts';
import { findFullWorkspaces, retryFor } from './webhook-deliveries.ts';

type Store = ResourceStore<WebhookEndpointData>;

const onePath = '/v1/webhook_endpoints/:id';
const params = z.object({ id: z.string() });
const place = z.object({ workspace_id: z.string().max(200).optional() });
const errors = { webhook_endpoint_not_found: 'no record with this ID is visible to the key' };

/** The routes of signing secrets and deliveries. */
export const webhookRoutes = (store: Store, deps: KindDeps, kit: RouteKit): Route[] => [
  rotateRoute(store, kit),
  listDeliveriesRoute(store, deps, kit),
  resendRoute(store, deps, kit),
];

const rotateRoute = (store: Store, kit: RouteKit): Route => ({
  method: 'POST',
  path: `${onePath}/rotate_secret`,
  operationId: 'rotateWebhookSecret',
  summary: 'Replace the signing secret of a webhook endpoint',
  description: 'The new secret is only in this answer.',
  example: { keep_old_secret_active_for_24_hours: true },
  errors,
  ...kit.write,
  responses: {
    200: {
      description: 'The webhook endpoint with its new signing secret.',
      schema: WebhookEndpointObject.extend({ signing_secret: z.string() }),
    },
  },
  ...withInput({ params, query: place, body: RotateSecretRequest }, async ({ query, body }, request, response) => {
    const record = await kit.recordOf(request, query);
    const secret = createSigningSecret();
    const rotated: NewSecret = { secret, keepsPrevious: body?.keep_old_secret_active_for_24_hours ?? false };
    const row = await store.update(record, kit.actorOf(request), { new_secret: rotated });
    response.setHeader('cache-control', 'no-store');
    response.json({ ...(await kit.viewsOf([row]))[0], signing_secret: secret.reveal() });
  }),
});

const isPending = sql`next_attempt_at is not null`;
const conditions = {
  pending: isPending,
  succeeded: sql`delivered_at is not null`,
  failed: sql`not (${isPending}) and delivered_at is null`,
};

const listDeliveriesRoute = (store: Store, { db }: KindDeps, kit: RouteKit): Route => ({
  method: 'GET',
  path: `${onePath}/deliveries`,
  operationId: 'listWebhookDeliveries',
  summary: 'List the deliveries to a webhook endpoint, newest first',
  description: 'Deliveries are kept for 30 days.',
  errors,
  ...kit.read,
  responses: { 200: { description: 'A page of deliveries.', schema: listOf(WebhookDeliveryObject) } },
  ...withInput(
    { params, query: ListQuery.extend({ ...place.shape, status: deliveryStatus.optional() }) },
    async ({ query }, request, response) => {
      const { id } = await store.get(await kit.recordOf(request, query));
      const { after, limit, status } = query;
      const { rows } = await sql<Selectable<WebhookDeliveryTable>>`
        select * from webhook_delivery
        where endpoint_id = ${id} and ${status === undefined ? sql`true` : conditions[status]}
          and ${after === undefined ? sql`true` : sql`(created_at, id) < (select created_at, id from webhook_delivery where id = ${after})`}
        order by created_at desc, id desc limit ${limit + 1}`.execute(db);
      response.json(toListResponse(rows.map(viewOfDelivery), limit));
    },
  ),
});

const resendRoute = (store: Store, { db }: KindDeps, kit: RouteKit): Route => ({
  method: 'POST',
  path: `${onePath}/deliveries/:delivery_id/resend`,
  operationId: 'resendWebhookDelivery',
  summary: 'Send a delivery again, with three more days of retries',
  description: 'The event keeps its ID, so a receiver that has processed it can recognise it.',
  errors: {
    ...errors,
    webhook_delivery_not_found: 'the endpoint has no delivery with this ID',
    webhook_endpoint_disabled: 'the endpoint is disabled: enable it first',
    too_many_deliveries: 'the workspace has reached its limit of pending deliveries',
  },
  ...kit.write,
  responses: { 200: { description: 'The delivery, which is pending.', schema: WebhookDeliveryObject } },
  ...withInput(
    { params: params.extend({ delivery_id: z.string() }), query: place },
    async ({ params: names, query }, request, response) => {
      const { id, workspace_id: workspaceId, data } = await store.get(await kit.recordOf(request, query));
      if (data.status !== 'enabled') {
        const message = `The webhook endpoint '${id}' is disabled. Set its status to 'enabled' before you resend deliveries.`;
        throw new GatewayError('conflict', 'webhook_endpoint_disabled', message);
      }
      if ((await findFullWorkspaces(db, [workspaceId])).has(workspaceId)) {
        const message = 'This workspace has the maximum number of pending deliveries. Try again when some have ended.';
        throw new GatewayError('quota_exceeded', 'too_many_deliveries', message);
      }
      const { rows } = await sql<Selectable<WebhookDeliveryTable>>`
        update webhook_delivery set attempts = 0, delivered_at = null, last_error = null,
          next_attempt_at = clock_timestamp(), retry_until = clock_timestamp() + ${retryFor}
        where id = ${names.delivery_id} and endpoint_id = ${id} returning *`.execute(db);
      const [delivery] = rows;
      if (delivery === undefined) {
        const message = `The webhook endpoint '${id}' has no delivery '${names.delivery_id.slice(0, 100)}'.`;
        throw new GatewayError('not_found', 'webhook_delivery_not_found', message, { param: 'delivery_id' });
      }
      response.json(viewOfDelivery(delivery));
    },
  ),
});

const secondsOrNull = (time: Date | null): number | null => (time === null ? null : seconds(time));

function viewOfDelivery(row: Selectable<WebhookDeliveryTable>): z.output<typeof WebhookDeliveryObject> {
  const status = row.next_attempt_at !== null ? 'pending' : row.delivered_at === null ? 'failed' : 'succeeded';
  return {
    id: row.id,
    object: 'webhook_endpoint.delivery',
    webhook_endpoint_id: row.endpoint_id,
    event_id: webhookId(row.event_id),
    event_type: row.type,
    data: { id: row.object_id },
    status,
    attempts: row.attempts,
    last_status_code: row.last_status,
    last_error: row.last_error,
    last_attempt_at: secondsOrNull(row.last_attempt_at),
    next_attempt_at: secondsOrNull(row.next_attempt_at),
    delivered_at: secondsOrNull(row.delivered_at),
    created_at: seconds(row.created_at),
  };
}
