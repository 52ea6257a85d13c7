import { sql, type Kysely, type Selectable } from 'kysely';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { readRetryAfter } from '#libs/calls/retry-waits.ts';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database, WebhookDeliveryTable } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createTurnsByOwner } from '#libs/kernel/turns-by-owner.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import { postSigned } from './post-signed.ts';
import { seconds, signingSecrets, webhookId, type WebhookEndpointData } from './webhook-data.ts';
import { endPendingDeliveries } from './webhook-deliveries.ts';
import { webhookEndpointModel } from './webhook-endpoints.ts';

type Deps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  secrets: Secrets;
  egress: Egress;
  /** The database's clock. */
  nowMs: () => number;
  logger: Logger;
};

type Delivery = Selectable<WebhookDeliveryTable>;
type Endpoint = Pick<ResourceRow<WebhookEndpointData>, 'id' | 'workspace_id' | 'data'>;
type Outcome = { status: number | null; error: string | null; retryAfterMs: number | null };

/** Deliveries that one endpoint is sent at a time. */
const sendsMax = 4;
/** Endpoints of all workspaces that one process sends to at a time, and of one workspace. */
const endpointsMax = 64;
const workspaceEndpointsMax = 4;
/** An attempt without a result is repeated after this time. Longer than any attempt takes. */
const claimFor = sql.raw(`interval '60 seconds'`);

/**
 * Sends due deliveries. All workers do this: an attempt is claimed by moving its next time into the future, so that it is
 * repeated if the worker is killed before the result is recorded. Endpoints take turns in random order, and each of them
 * only blocks itself while it does not answer.
 */
export const createDeliverySender = (deps: Deps): Part =>
  createTurnsByOwner({
    name: 'webhook deliveries',
    turnsMax: endpointsMax,
    workspaceTurnsMax: workspaceEndpointsMax,
    find: () => findDueEndpoints(deps.db),
    take: (endpointId, signal) => takeTurn(deps, endpointId, signal),
    logger: deps.logger,
  });

/** Returns endpoints with due deliveries, in random order. Reads one entry of the index for each endpoint. */
async function findDueEndpoints(db: Kysely<Database>): Promise<{ id: string; workspaceId: string }[]> {
  const { rows } = await sql<{ id: string; workspaceId: string }>`
    with recursive waiting as (
      (
        select workspace_id, endpoint_id from webhook_delivery where next_attempt_at is not null
        order by workspace_id, endpoint_id limit 1
      )
      union all
      select next.workspace_id, next.endpoint_id from waiting cross join lateral (
        select workspace_id, endpoint_id from webhook_delivery
        where next_attempt_at is not null
          and (workspace_id, endpoint_id) > (waiting.workspace_id, waiting.endpoint_id)
        order by workspace_id, endpoint_id limit 1
      ) as next
    )
    select workspace_id as "workspaceId", endpoint_id as id from waiting
    where exists (
      select from webhook_delivery as due where due.workspace_id = waiting.workspace_id
        and due.endpoint_id = waiting.endpoint_id and due.next_attempt_at <= clock_timestamp()
    )
    order by random() limit 1000`.execute(db);
  return rows;
}

/** Sends the oldest due deliveries of an endpoint. */
async function takeTurn(deps: Deps, endpointId: string, signal: AbortSignal): Promise<void> {
  const { db } = deps;
  const { rows: endpoints } = await sql<ResourceRow<WebhookEndpointData>>`
    select * from resource where id = ${endpointId} and deleted_at is null`.execute(db);
  const [endpoint] = endpoints;
  if (endpoint?.data.status !== 'enabled') {
    await endPendingDeliveries(db, endpointId, endpoint ? 'endpoint_disabled' : 'endpoint_deleted');
    return;
  }
  const { rows: claimed } = await sql<Delivery>`
    update webhook_delivery set attempts = attempts + 1, last_attempt_at = clock_timestamp(),
      next_attempt_at = clock_timestamp() + ${claimFor}
    where id in (
      select id from webhook_delivery
      where workspace_id = ${endpoint.workspace_id} and endpoint_id = ${endpointId} and next_attempt_at <= clock_timestamp()
      order by next_attempt_at limit ${sendsMax} for update skip locked
    ) returning *`.execute(db);
  const sent = await Promise.allSettled(
    claimed.map(async (delivery) => {
      const outcome = await send(deps, endpoint, delivery, signal);
      if (outcome.status === 410) await disable(deps, delivery);
      else await recordOutcome(db, delivery, outcome);
    }),
  );
  const failed = sent.find((result) => result.status === 'rejected');
  if (failed) throw failed.reason;
}

/** Makes one attempt. Throws if the process is stopping or the database is unavailable: the attempt is then repeated. */
async function send(deps: Deps, endpoint: Endpoint, delivery: Delivery, signal: AbortSignal): Promise<Outcome> {
  const { db, egress, secrets, logger } = deps;
  const { workspace_id: workspaceId, id: ownerId, data } = endpoint;
  const nowMs = deps.nowMs();
  const { event_id, type, created_at, object_id } = delivery;
  const event = {
    id: webhookId(event_id),
    object: 'event',
    type,
    created_at: seconds(created_at),
    data: { id: object_id },
  };
  try {
    const members = (await secrets.readOwned(db, { workspaceId, ownerId })) ?? {};
    const { status, headers } = await postSigned(
      { egress, nowMs, label: 'The webhook endpoint', signal },
      {
        id: event.id,
        body: JSON.stringify(event),
        url: new URL(data.url),
        secrets: signingSecrets(data, members, nowMs),
        workspaceId,
      },
    );
    const retryAfterMs = readRetryAfter(headers as Record<string, string>, Date.now());
    return { status, error: status < 300 ? null : 'unexpected_status', retryAfterMs };
  } catch (error) {
    if (signal.aborted) throw error;
    // The endpoint failed. The cause of the error can look like a lost connection to the database.
    if (error instanceof GatewayError) return { status: null, error: error.code, retryAfterMs: null };
    if (isTransient(error)) throw error;
    logger.error({ err: error, delivery_id: delivery.id }, 'a webhook delivery cannot be sent');
    return { status: null, error: 'internal_error', retryAfterMs: null };
  }
}

/** Records the result of an attempt, unless the delivery was resent meanwhile. */
async function recordOutcome(
  db: Kysely<Database>,
  { id, attempts }: Delivery,
  { status, error, retryAfterMs }: Outcome,
): Promise<void> {
  const waitMs = retryWaitMs(attempts, retryAfterMs);
  await sql`
    update webhook_delivery set last_status = ${status}, last_error = ${error},
      delivered_at = case when ${error}::text is null then clock_timestamp() end,
      next_attempt_at = case when ${error}::text is not null and clock_timestamp() < retry_until
        then least(clock_timestamp() + ${waitMs}::float8 * interval '1 millisecond', retry_until) end
    where id = ${id} and attempts = ${attempts}`.execute(db);
}

/** Disables an endpoint that answered with 410 (Gone). It gets no further events until it is enabled again. */
async function disable({ eventLog }: Deps, delivery: Delivery): Promise<void> {
  const { id, endpoint_id: endpointId, workspace_id: workspaceId, event_id: eventId, object_id: objectId } = delivery;
  const actor = { type: 'system' as const, id: 'webhooks' };
  const metadata = { actor, causation_id: eventId, correlation_id: objectId };
  await eventLog.transact({ workspaceId, streams: [endpointId], metadata }, async (unit) => {
    const row = await unit.load(webhookEndpointModel, endpointId);
    if (row?.deleted_at === null && row.data['status'] === 'enabled') {
      await unit.append(webhookEndpointModel, endpointId, [{ type: 'webhook_endpoint.disabled', data: {} }]);
    }
    await unit.tx.updateTable('webhook_delivery').set({ last_status: 410 }).where('id', '=', id).execute();
    await endPendingDeliveries(unit.tx, endpointId, 'endpoint_disabled');
  });
}

const firstWaitMs = 5_000;
const longestWaitMs = 6 * 3_600_000;

/**
 * How long to wait after a failed attempt: 5 s, 15 s and so on up to six hours, a fifth more or less, and at least as long as
 * the receiver asks for, six hours at most. About twenty attempts take three days.
 * @testOnly
 */
export function retryWaitMs(attempts: number, retryAfterMs: number | null, random: () => number = Math.random): number {
  const backoffMs = Math.min(firstWaitMs * 3 ** (attempts - 1), longestWaitMs);
  return Math.max(backoffMs * (0.8 + 0.4 * random()), Math.min(retryAfterMs ?? 0, longestWaitMs));
}
