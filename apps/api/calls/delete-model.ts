import { z } from 'zod';
import { credentialHeaders } from '#libs/access/request-credentials.ts';
import type { Route } from '#libs/http/route.ts';
import { relayHandler, type RelayDeps } from './relay-call.ts';

/**
 * DELETE /v1/models/{model}: deletes a fine-tuned model at its provider, which the headers or `@virtual-key/model` name.
 * Errors: those of the provider, missing_credentials, unsupported_operation.
 */
export function deleteModel(deps: RelayDeps): Route {
  const operation = { area: 'stored_objects', method: 'DELETE', path: '/v1/models/:model' } as const;
  return {
    method: operation.method,
    path: operation.path,
    operationId: 'deleteModel',
    summary: 'Delete a fine-tuned model at its provider',
    tag: 'Models',
    scope: 'models.write',
    request: { params: z.object({ model: z.string() }), query: 'relayed', headers: ['metadata', ...credentialHeaders] },
    responses: { 200: { description: "The provider's answer, unchanged.", contentType: 'application/json' } },
    handler: relayHandler(deps, operation),
  };
}
