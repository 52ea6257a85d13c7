import { sql } from 'kysely';
import type { Request } from 'express';
import { LeakedKeyReport, LeakedKeyRequest } from '#libs/contracts/people/api-keys.ts';
import { getClientAddress } from '#libs/http/client-address.ts';
import { getContext } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { hashKey, isWellFormedGatewayKey } from '#libs/identity/gateway-key.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { scrub } from '#libs/kernel/logging/scrub.ts';
import type { ApiKeyData } from './api-key-data.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import type { ResourceEvent, ResourceRow } from '#libs/records/resource-row.ts';
import { resourceModel } from '#libs/records/resource-model.ts';

type Model = ReturnType<typeof resourceModel>;
type Found = { id: string; workspaceId: string };

/**
 * POST /v1/api-keys/leaked: revokes a key that was found, for example by a scanner of public repositories. The request needs
 * no other key, because the reporter could already use this one. The response does not show whether the key exists, and wrong
 * values count as wrong keys.
 */
export const reportLeakedKeyRoute = (deps: KindDeps, model: () => Model): Route => ({
  method: 'POST',
  path: '/v1/api-keys/leaked',
  operationId: 'reportLeakedApiKey',
  summary: 'Report a leaked API key to revoke it immediately',
  description:
    'For secret scanners and anyone who finds a key. The complete value is the proof. A known key is revoked within a ' +
    'second. For a rotated key, reporting an earlier value ends only that value. Unknown keys get the same answer.',
  example: { key: 'slk_…', url: 'https://git.example/project/commit/1' },
  errors: { invalid_value: 'the value is not a complete API key of Sluice' },
  tag: 'API keys',
  scope: 'public',
  responses: { 200: { description: 'The report was accepted.', schema: LeakedKeyReport } },
  ...withInput({ body: LeakedKeyRequest }, async ({ body }, request, response) => {
    if (!isWellFormedGatewayKey(body.key)) {
      const message =
        "Invalid 'key': this is not a complete API key of Sluice. Its checksum is wrong, or it is cut off.";
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'key' });
    }
    const forgive = deps.people.slowGuesses(request);
    const digest = hashKey(body.key);
    const { rows } = await sql<Found>`
      select id, workspace_id as "workspaceId" from resource
      where kind = 'api_key' and lookup = ${digest} and deleted_at is null`.execute(deps.db);
    // Earlier values of rotated keys have no index, but every process knows those that still work.
    const earlier = deps.snapshot.findApiKey?.(digest)?.caller;
    const found = rows[0] ?? (earlier && { id: earlier.keyId, workspaceId: earlier.workspaceId });
    if (found !== undefined) {
      forgive();
      await revoke(deps, model(), found, { digest, url: body.url, request });
    }
    response.json({ object: 'leaked-key-report', status: 'accepted' });
  }),
});

/** If a previous value of a rotated key has leaked, only that value is revoked; the newest one stays valid. */
async function revoke(
  { eventLog, snapshot }: KindDeps,
  model: Model,
  { id, workspaceId }: Found,
  { digest, url, request }: { digest: string; url: string | undefined; request: Request },
): Promise<void> {
  const { requestId, traceId } = getContext(request);
  const address = getClientAddress(request);
  const metadata = {
    actor: { type: 'system' as const, id: 'leak_report' },
    request_id: requestId,
    trace_id: traceId,
    ...(address === null ? {} : { address }),
    method: request.method,
    path: request.path,
  };
  const leak = { reason: 'leaked', ...(url === undefined ? {} : { url: scrub(url) }) };
  await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    const row = (await unit.load(model, id)) as ResourceRow<ApiKeyData> | undefined;
    if (!row || row.deleted_at) return;
    const { previous = [] } = row.data;
    const isNewest = row.data.digest === digest;
    const left = previous.filter((earlier) => earlier.digest !== digest);
    const event: ResourceEvent = isNewest
      ? { type: 'api_key.revoked', data: leak }
      : { type: 'api_key.updated', data: { previous: left } };
    await unit.append(model, id, [event]);
    await announceAccessChange(unit);
  });
  await snapshot.catchUp();
}
