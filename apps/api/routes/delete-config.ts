import { z } from 'zod';
import type { Configs } from '#libs/access/configs.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

const DeletedConfig = z.object({
  id: z.string(),
  object: z.literal('config'),
  slug: z.string(),
  deleted: z.literal(true),
});

/** DELETE /v1/configs/{slug}: frees the slug; running batches keep their version. Errors: not_found. */
export function deleteConfig({ configs }: { configs: Configs }): Route {
  return {
    method: 'DELETE',
    path: '/v1/configs/:slug',
    operationId: 'deleteConfig',
    summary: 'Delete a config',
    tag: 'Configs',
    scope: 'configs.write',
    responses: { 200: { description: 'The config was deleted.', schema: DeletedConfig } },
    ...withInput({ params: z.object({ slug: z.string() }) }, async ({ params }, request, response) => {
      const { id, slug } = await configs.remove(callerOf(request).workspaceId, params.slug, eventMetadataOf(request));
      response.json({ id, object: 'config', slug, deleted: true });
    }),
  };
}
