import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import type { Database } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { ClaimedJob, QueueDefinition } from '#libs/queue/queue-definition.ts';
import { postSigned } from '#libs/resources/webhooks/post-signed.ts';

/** One job for each alert that was recorded: the event at this version of the record's stream. */
export const alertQueue: QueueDefinition<{ record_id: string; version: number }> = {
  name: 'alert-deliver',
  payload: z.object({ record_id: z.string(), version: z.number().int() }),
  options: {
    // With the delays below, an endpoint can be unavailable for about a day.
    retryLimit: 35,
    retryDelay: 1,
    retryBackoff: true,
    retryDelayMax: 3_600,
    heartbeatSeconds: 10,
    expireInSeconds: 60,
    retentionSeconds: 2 * 86_400,
    deleteAfterSeconds: 3_600,
  },
};

/** The webhook for alerts. `secret` is a secret of Standard Webhooks: `whsec_` and base64. */
export type AlertWebhook = { url: URL; secret: Secret };

type AlertRecord = { slug: string | null; name: string | null; alert_emails: string[] | null };

/** Sends one alert to the webhook, under the ID of its event. Throws, so that the queue retries, unless the answer is 2xx. */
export async function deliverAlert(
  { db, egress, webhook, now }: { db: Kysely<Database>; egress: Egress; webhook: AlertWebhook; now: () => number },
  { payload, signal }: Pick<ClaimedJob<{ record_id: string; version: number }>, 'payload' | 'signal'>,
): Promise<void> {
  const { record_id: recordId, version } = payload;
  const [event] = await readStream(db, recordId, version - 1, 1);
  if (event === undefined) throw new Error(`${recordId} has no event of version ${version}`);
  const body = JSON.stringify(await toBodyObject(db, event));
  const { status } = await postSigned(
    { egress, nowMs: now(), label: 'The alert webhook', signal },
    { id: event.eventId, body, url: webhook.url, secrets: [webhook.secret], workspaceId: event.workspaceId },
  );
  if (status < 200 || status > 299) throw new Error(`the alert webhook returned status ${status}`);
}

/** The alert as the body of Standard Webhooks. Amounts are decimals: US cents, or tokens. */
async function toBodyObject(db: Kysely<Database>, event: RecordedEvent): Promise<object> {
  const { type, workspaceId, data, recordedAt, streamId: id } = event;
  const { rows } = await sql<AlertRecord>`
    select slug, data ->> 'name' as name, data -> 'alert_emails' as alert_emails from resource where id = ${id}`.execute(
    db,
  );
  const { slug = null, name = null, alert_emails: emails } = rows[0] ?? {};
  const record = { id, name, slug, alert_emails: emails ?? [] };
  return { type, timestamp: recordedAt.toISOString(), data: { workspace_id: workspaceId, ...data, record } };
}
