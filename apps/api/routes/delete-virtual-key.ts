import { z } from 'zod';
import type { VirtualKeys } from '#libs/access/virtual-keys.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

const DeletedVirtualKey = z.object({
  id: z.string(),
  object: z.literal('virtual-key'),
  slug: z.string(),
  deleted: z.literal(true),
});

/** DELETE /v1/virtual-keys/{slug}: deletes the credential and frees the slug. Errors: not_found. */
export function deleteVirtualKey({ virtualKeys }: { virtualKeys: VirtualKeys }): Route {
  return {
    method: 'DELETE',
    path: '/v1/virtual-keys/:slug',
    operationId: 'deleteVirtualKey',
    summary: 'Delete a virtual key',
    tag: 'Virtual keys',
    scope: 'virtual_keys.write',
    responses: { 200: { description: 'The virtual key was deleted.', schema: DeletedVirtualKey } },
    ...withInput({ params: z.object({ slug: z.string() }) }, async ({ params: { slug } }, request, response) => {
      const { id } = await virtualKeys.remove(callerOf(request).workspaceId, slug, eventMetadataOf(request));
      response.json({ id, object: 'virtual-key', slug, deleted: true });
    }),
  };
}
