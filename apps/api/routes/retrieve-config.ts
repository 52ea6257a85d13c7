import { z } from 'zod';
import { toConfigObject, type Configs } from '#libs/access/configs.ts';
import { ConfigObject } from '#libs/contracts/configs.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

/** GET /v1/configs/{slug}. Errors: not_found, also for another workspace's. */
export function retrieveConfig({ configs }: { configs: Configs }): Route {
  return {
    method: 'GET',
    path: '/v1/configs/:slug',
    operationId: 'retrieveConfig',
    summary: 'Retrieve the newest version of a config',
    tag: 'Configs',
    scope: 'configs.read',
    responses: { 200: { description: 'The config.', schema: ConfigObject } },
    ...withInput({ params: z.object({ slug: z.string() }) }, async ({ params }, request, response) => {
      response.json(toConfigObject(await configs.get(callerOf(request).workspaceId, params.slug)));
    }),
  };
}
