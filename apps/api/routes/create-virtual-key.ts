import type { VirtualKeys } from '#libs/access/virtual-keys.ts';
import { CreateVirtualKeyRequest, VirtualKeyObject } from '#libs/contracts/virtual-keys.ts';
import { fingerprintOf } from '#libs/event-log/idempotency.ts';
import { jsonBodyOf } from '#libs/http/json-body.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { callIdentityOf, eventMetadataOf } from '#libs/identity/call-identity.ts';

/**
 * POST /v1/virtual-keys. The credential is stored encrypted and never returned.
 * Errors: invalid_request (provider, custom host), conflict (slug_taken).
 */
export function createVirtualKey({ virtualKeys }: { virtualKeys: VirtualKeys }): Route {
  return {
    method: 'POST',
    path: '/v1/virtual-keys',
    operationId: 'createVirtualKey',
    summary: 'Store a provider credential under a slug',
    tag: 'Virtual keys',
    scope: 'virtual_keys.write',
    responses: { 200: { description: 'The record, without the credential.', schema: VirtualKeyObject } },
    ...withInput({ body: CreateVirtualKeyRequest }, async ({ body }, request, response) => {
      const call = { ...callIdentityOf(request), fingerprint: fingerprintOf(jsonBodyOf(request).bytes) };
      const { record, replayed } = await virtualKeys.create(call, eventMetadataOf(request), body);
      if (replayed) response.setHeader('idempotent-replayed', 'true');
      response.json(record);
    }),
  };
}
