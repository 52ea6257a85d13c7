import { z } from 'zod';
import { toVirtualKeyObject, type VirtualKeys } from '#libs/access/virtual-keys.ts';
import { VirtualKeyObject } from '#libs/contracts/virtual-keys.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';

/** GET /v1/virtual-keys/{slug}. Errors: not_found, also for a key of another workspace. */
export function retrieveVirtualKey({ virtualKeys, clock }: { virtualKeys: VirtualKeys; clock: Clock }): Route {
  return {
    method: 'GET',
    path: '/v1/virtual-keys/:slug',
    operationId: 'retrieveVirtualKey',
    summary: 'Retrieve the record of a virtual key',
    tag: 'Virtual keys',
    scope: 'virtual_keys.read',
    responses: { 200: { description: 'The record, without the credential.', schema: VirtualKeyObject } },
    ...withInput({ params: z.object({ slug: z.string() }) }, async ({ params }, request, response) => {
      const row = await virtualKeys.get(callerOf(request).workspaceId, params.slug);
      response.json(toVirtualKeyObject(row, clock.now()));
    }),
  };
}
