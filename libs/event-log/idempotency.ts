import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createHash } from 'node:crypto';
import { isLockTimeout } from '#libs/database/database-error.ts';
import { runForWorkspace } from '#libs/database/workspace-binding.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Command, EventLog, UnitOfWork } from './event-log.ts';

/** The identity by which repeats of a call are recognised. */
export type CallIdentity = {
  workspaceId: string;
  keyId: string;
  /** The operation, such as `POST /v1/batches`. */
  route: string;
  /** The client's `Idempotency-Key`, when it sent one. */
  idempotencyKey: string | null;
  /** The number of the try, as the client reports it (`X-Stainless-Retry-Count`); 0 is the first one. */
  retryCount: number;
  /** How long the client waits for one try, if it reports that. */
  tryMsMax: number;
  requestId: string;
  /** Hash of the request's body. */
  fingerprint: string;
};

export type CallResult<Body extends object> = { status: number; body: Body; replayed: boolean };

/** The default timeout of the OpenAI SDKs for one try. */
export const defaultTryMs = 10 * 60_000;
/** The longest wait before their next try: a longer `retry-after` is ignored. */
const betweenTriesMs = 60_000;
const retriesMax = 20;
const windowMsMax = 24 * 3_600_000;

/** The earliest time at which the first try of this call can have begun. */
function sinceFirstTryMs({ retryCount, tryMsMax }: CallIdentity): number {
  return Math.min(windowMsMax, Math.min(retryCount, retriesMax) * (tryMsMax + betweenTriesMs));
}

/** Returns the fingerprint of a request body. */
export const fingerprintBody = (body: Uint8Array | string): string => createHash('sha256').update(body).digest('hex');

/**
 * Runs a command that creates something at most once for each identity. The first answer is stored in the command's own
 * transaction and returned to each repeat. A concurrent repeat waits for the first one; after the lock timeout it gets
 * 409. The same key with another body is a `conflict`.
 *
 * Without a key, a retry gets the latest answer to the same body that an earlier try of it may have received: one that
 * was recorded after its first try can have begun, and that was so far returned to lower-numbered tries only. (Clients
 * number their tries, so an answer that was returned to a second try belongs to another call than this second try.) If
 * the first try of a call never arrived, shortly after another call with the same body was answered, the two cases
 * cannot be distinguished; `replayed` reports that an answer was returned again.
 */
export async function transactOnce<Body extends object>(
  eventLog: EventLog,
  identity: CallIdentity,
  command: Command,
  work: (unit: UnitOfWork) => Promise<{ status: number; body: Body }>,
): Promise<CallResult<Body>> {
  const { workspaceId, keyId, route, fingerprint } = identity;
  const key = identity.idempotencyKey ?? identity.requestId;
  // These are locks, not streams. Repeats wait for each other on their common key, or without a key on the body.
  const lock = [workspaceId, keyId, route, identity.idempotencyKey ?? fingerprint].join('\u001f');
  // No event records that an answer was returned to a retry. If the reply to that COMMIT is lost, the transaction runs
  // again.
  let given: string | null = null;
  try {
    return await eventLog.transact({ ...command, streams: [...command.streams, `call:${lock}`] }, async (unit) => {
      // A key of the organisation acts in other workspaces too; its answers are stored in its own.
      const earlier = await runForWorkspace(workspaceId, () => recall(unit, identity, given));
      given = earlier?.idempotency_key ?? null;
      if (earlier) return { status: earlier.status, body: earlier.body as Body, replayed: true };
      const { status, body } = await work(unit);
      const kept = unit.tx.insertInto('command_result').values({
        workspace_id: workspaceId,
        key_id: keyId,
        route,
        idempotency_key: key,
        fingerprint,
        status,
        body: JSON.stringify(body),
        recorded_at: unit.now,
        retry_count: Math.min(identity.retryCount, retriesMax),
      });
      await runForWorkspace(workspaceId, () => kept.execute());
      return { status, body, replayed: false };
    });
  } catch (error) {
    if (!isLockTimeout(error)) throw error;
    throw new GatewayError(
      'conflict',
      'request_in_progress',
      'The first request with this Idempotency-Key is still in progress. Send it again when it has finished.',
      { cause: error },
    );
  }
}

/** `given`: the key of the answer that this call had already found before its transaction was retried. */
async function recall(
  unit: UnitOfWork,
  identity: CallIdentity,
  given: string | null,
): Promise<{ status: number; body: object; idempotency_key: string } | undefined> {
  const { workspaceId, keyId, route, idempotencyKey, fingerprint } = identity;
  const retryCount = Math.min(identity.retryCount, retriesMax);
  if (idempotencyKey === null && retryCount === 0) return undefined;
  let query = unit.tx
    .selectFrom('command_result')
    .select(['status', 'body', 'fingerprint', 'idempotency_key'])
    .where('workspace_id', '=', workspaceId)
    .where('key_id', '=', keyId)
    .where('route', '=', route);
  query =
    idempotencyKey === null
      ? query
          .where('fingerprint', '=', fingerprint)
          .where('recorded_at', '>=', new Date(unit.now.getTime() - sinceFirstTryMs(identity)))
          .where((of) => of.or([of('retry_count', '<', retryCount), of('idempotency_key', '=', given)]))
          .orderBy('recorded_at', 'desc')
          .limit(1)
      : query.where('idempotency_key', '=', idempotencyKey);
  const row = await query.executeTakeFirst();
  if (row && row.fingerprint !== fingerprint) {
    throw new GatewayError(
      'conflict',
      'idempotency_key_reused',
      'This Idempotency-Key was already used with another request body. Use a new key for a new request.',
      { param: 'Idempotency-Key' },
    );
  }
  if (row && idempotencyKey === null) {
    await unit.tx
      .updateTable('command_result')
      .set({ retry_count: retryCount })
      .where('workspace_id', '=', workspaceId)
      .where('key_id', '=', keyId)
      .where('route', '=', route)
      .where('idempotency_key', '=', row.idempotency_key)
      .execute();
  }
  return row;
}

/** Deletes the remembered results of commands that contain one of these texts, which are in lower case. */
export async function forgetResultsWith(db: Kysely<Database>, texts: readonly string[]): Promise<void> {
  await sql`
    delete from command_result where exists (
      select from unnest(${texts}::text[]) as text where position(text in lower(body::text)) > 0)`.execute(db);
}
