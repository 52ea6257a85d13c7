import { z } from 'zod';
import { toVirtualKeyObject, type VirtualKeys } from '#libs/access/virtual-keys.ts';
import { UpdateVirtualKeyRequest, VirtualKeyObject } from '#libs/contracts/virtual-keys.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

/**
 * PUT /v1/virtual-keys/{slug}. Absent members keep their values. A new custom host needs the credential in the same request.
 * Errors: invalid_request (credential_required, custom host), not_found.
 */
export function updateVirtualKey({ virtualKeys, clock }: { virtualKeys: VirtualKeys; clock: Clock }): Route {
  return {
    method: 'PUT',
    path: '/v1/virtual-keys/:slug',
    operationId: 'updateVirtualKey',
    summary: 'Update a virtual key or rotate its credential',
    tag: 'Virtual keys',
    scope: 'virtual_keys.write',
    responses: { 200: { description: 'The record, without the credential.', schema: VirtualKeyObject } },
    ...withInput(
      { params: z.object({ slug: z.string() }), body: UpdateVirtualKeyRequest },
      async ({ params, body }, request, response) => {
        const { workspaceId } = callerOf(request);
        const row = await virtualKeys.update(workspaceId, params.slug, eventMetadataOf(request), body);
        response.json(toVirtualKeyObject(row, clock.now()));
      },
    ),
  };
}
