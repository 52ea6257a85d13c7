import type { ApiKeys } from '#libs/access/api-keys.ts';
import { CreateApiKeyRequest, CreatedApiKey } from '#libs/contracts/api-keys.ts';
import { fingerprintOf } from '#libs/event-log/idempotency.ts';
import { jsonBodyOf } from '#libs/http/json-body.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { callIdentityOf, eventMetadataOf } from '#libs/identity/call-identity.ts';

/**
 * POST /v1/api-keys. The only answer that holds the key; it cannot be repeated, not even for a repeated call.
 * Errors: invalid_request, forbidden (scopes that the caller lacks), conflict (idempotency_replay_unavailable).
 */
export function createApiKey({ apiKeys }: { apiKeys: ApiKeys }): Route {
  return {
    method: 'POST',
    path: '/v1/api-keys',
    operationId: 'createApiKey',
    summary: 'Create an API key',
    tag: 'API keys',
    scope: 'api_keys.write',
    responses: { 200: { description: 'The record and the key, which is returned only once.', schema: CreatedApiKey } },
    ...withInput({ body: CreateApiKeyRequest }, async ({ body }, request, response) => {
      const call = { ...callIdentityOf(request), fingerprint: fingerprintOf(jsonBodyOf(request).bytes) };
      const { record, key } = await apiKeys.create(call, callerOf(request), eventMetadataOf(request), body);
      response.setHeader('cache-control', 'no-store');
      response.json({ ...record, key: key.reveal() });
    }),
  };
}
