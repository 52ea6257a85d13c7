import { sql, type Kysely } from 'kysely';
import type { WebhookEventType } from '#libs/contracts/webhooks.ts';
import type { Database } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { Subscriber } from '#libs/event-log/subscriber.ts';

/** The maximum number of pending deliveries in a workspace, exceeded by one page of events at most. */
const pendingMax = 10_000;
/** How long a delivery is retried. */
export const retryFor = sql.raw(`interval '3 days'`);
/** How many days deliveries are listed and can be resent. */
export const deliveryDays = 30;
const keepFor = sql.raw(`interval '${deliveryDays} days'`);

const batchTypes: Readonly<Record<string, WebhookEventType>> = {
  'batch.completed': 'batch.completed',
  'batch.failed': 'batch.failed',
  'batch.expired': 'batch.expired',
  'batch.cancelled': 'batch.cancelled',
};

const tuningType = 'fine_tuning_job.status_changed';
const tuningTypes: Readonly<Record<string, WebhookEventType>> = {
  succeeded: 'fine_tuning.job.succeeded',
  failed: 'fine_tuning.job.failed',
  cancelled: 'fine_tuning.job.cancelled',
};

/**
 * Creates a delivery of each event for each endpoint that wants it, in the transaction that moves its checkpoint. Events that
 * are older than the endpoint, or than deliveries are kept, are not delivered. If a workspace has too many pending
 * deliveries, further ones are created as failed, so that they can be resent.
 */
export const deliverySubscriber: Subscriber = {
  name: 'webhooks',
  // The workers also write the deliveries.
  tables: [],
  types: [...Object.keys(batchTypes), tuningType],
  async apply(tx, events) {
    const ended = events.flatMap((event) => {
      const type = webhookTypeOf(event);
      return type === null ? [] : [{ event, type }];
    });
    if (ended.length === 0) return;
    const full = await findFullWorkspaces(tx, [...new Set(ended.map(({ event }) => event.workspaceId))]);
    await sql`
      insert into webhook_delivery (id, workspace_id, endpoint_id, event_id, type, object_id, created_at, next_attempt_at,
        last_error, retry_until)
      select 'whd_' || md5(endpoint.id || object_id || type), endpoint.workspace_id, endpoint.id, event_id, type, object_id,
        recorded_at,
        case when is_full then null else clock_timestamp() end,
        case when is_full then 'too_many_deliveries' end,
        clock_timestamp() + ${retryFor}
      from unnest(
        ${ended.map(({ event }) => event.eventId)}::uuid[],
        ${ended.map(({ event }) => event.workspaceId)}::text[],
        ${ended.map(({ event }) => full.has(event.workspaceId))}::boolean[],
        ${ended.map(({ event }) => event.streamId)}::text[],
        ${ended.map(({ type }) => type)}::text[],
        ${ended.map(({ event }) => event.recordedAt)}::timestamptz[]
      ) as ended (event_id, workspace_id, is_full, object_id, type, recorded_at)
      join resource as endpoint on endpoint.kind = 'webhook_endpoint' and endpoint.workspace_id = ended.workspace_id
        and endpoint.deleted_at is null and endpoint.created_at <= recorded_at
        and endpoint.data ->> 'status' = 'enabled' and endpoint.data -> 'event_types' ? type
      join resource as workspace on workspace.id = ended.workspace_id and workspace.deleted_at is null
      where recorded_at > clock_timestamp() - ${keepFor}
      on conflict (id) do nothing`.execute(tx);
  },
};

/** The type under which webhooks deliver an event; null if they do not. */
function webhookTypeOf({ type, data }: RecordedEvent): WebhookEventType | null {
  if (type !== tuningType) return batchTypes[type] ?? null;
  return tuningTypes[(data as { status: string }).status] ?? null;
}

/** Returns those of the workspaces that have the maximum number of pending deliveries. */
export async function findFullWorkspaces(
  db: Kysely<Database>,
  workspaceIds: readonly string[],
): Promise<ReadonlySet<string>> {
  const { rows } = await sql<{ id: string }>`
    select wanted.id from unnest(${workspaceIds}::text[]) as wanted (id)
    where (
      select count(*) from (
        select from webhook_delivery as delivery
        where delivery.workspace_id = wanted.id and delivery.next_attempt_at is not null limit ${pendingMax}
      ) as pending
    ) >= ${pendingMax}`.execute(db);
  return new Set(rows.map(({ id }) => id));
}

/** Ends the pending deliveries to an endpoint. They can be resent. */
export async function endPendingDeliveries(db: Kysely<Database>, endpointId: string, error: string): Promise<void> {
  await db
    .updateTable('webhook_delivery')
    .set({ next_attempt_at: null, last_error: error })
    .where('endpoint_id', '=', endpointId)
    .where('next_attempt_at', 'is not', null)
    .execute();
}

/** Deletes deliveries that are older than they are kept. Returns how many of each workspace. */
export async function sweepDeliveries(db: Kysely<Database>): Promise<Map<string, number>> {
  const { rows } = await sql<{ workspaceId: string; count: number }>`
    with deleted as (
      delete from webhook_delivery where created_at < clock_timestamp() - ${keepFor} returning workspace_id
    )
    select workspace_id as "workspaceId", count(*)::int as count from deleted group by 1`.execute(db);
  return new Map(rows.map(({ workspaceId, count }) => [workspaceId, count]));
}
