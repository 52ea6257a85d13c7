import { z } from 'zod';
import { toApiKeyObject, type ApiKeys } from '#libs/access/api-keys.ts';
import { ApiKeyObject } from '#libs/contracts/api-keys.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';

/** GET /v1/api-keys/{id}. Errors: not_found, also for another workspace's. */
export function retrieveApiKey({ apiKeys, clock }: { apiKeys: ApiKeys; clock: Clock }): Route {
  return {
    method: 'GET',
    path: '/v1/api-keys/:id',
    operationId: 'retrieveApiKey',
    summary: 'Retrieve the record of an API key',
    tag: 'API keys',
    scope: 'api_keys.read',
    responses: { 200: { description: 'The record, without the key.', schema: ApiKeyObject } },
    ...withInput({ params: z.object({ id: z.string() }) }, async ({ params }, request, response) => {
      const row = await apiKeys.get(callerOf(request).workspaceId, params.id);
      response.json(toApiKeyObject(row, clock.now()));
    }),
  };
}
