import { z } from 'zod';
import type { ApiKeys } from '#libs/access/api-keys.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

const DeletedApiKey = z.object({ id: z.string(), object: z.literal('api-key'), deleted: z.literal(true) });

/** DELETE /v1/api-keys/{id}: every process refuses the key within a second. Twice is as good as once. Errors: not_found. */
export function deleteApiKey({ apiKeys }: { apiKeys: ApiKeys }): Route {
  return {
    method: 'DELETE',
    path: '/v1/api-keys/:id',
    operationId: 'deleteApiKey',
    summary: 'Revoke an API key',
    tag: 'API keys',
    scope: 'api_keys.write',
    responses: { 200: { description: 'The key was revoked; its record remains.', schema: DeletedApiKey } },
    ...withInput({ params: z.object({ id: z.string() }) }, async ({ params: { id } }, request, response) => {
      const caller = callerOf(request);
      await apiKeys.revoke(caller.workspaceId, caller, id, eventMetadataOf(request));
      response.json({ id, object: 'api-key', deleted: true });
    }),
  };
}
