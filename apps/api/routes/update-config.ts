import { z } from 'zod';
import { toConfigObject, type Configs } from '#libs/access/configs.ts';
import { ConfigObject, UpdateConfigRequest } from '#libs/contracts/configs.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

/** PUT /v1/configs/{slug}: another config becomes the next version. Errors: invalid_request, not_found. */
export function updateConfig({ configs }: { configs: Configs }): Route {
  return {
    method: 'PUT',
    path: '/v1/configs/:slug',
    operationId: 'updateConfig',
    summary: 'Update a config: a new version, or another name',
    tag: 'Configs',
    scope: 'configs.write',
    responses: { 200: { description: 'The newest version of the config.', schema: ConfigObject } },
    ...withInput(
      { params: z.object({ slug: z.string() }), body: UpdateConfigRequest },
      async ({ params, body }, request, response) => {
        const { workspaceId } = callerOf(request);
        response.json(toConfigObject(await configs.update(workspaceId, params.slug, eventMetadataOf(request), body)));
      },
    ),
  };
}
