import { z } from 'zod';
import { toConfigVersionObject, type Configs } from '#libs/access/configs.ts';
import {
  ConfigVersionList,
  ConfigVersionListQuery,
  ConfigVersionObject,
  ConfigVersionParams,
} from '#libs/contracts/configs.ts';
import { toListResponse } from '#libs/http/list-response.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

/** GET /v1/configs/{slug}/versions. Newest first. Errors: not_found, invalid_request (limit, cursor). */
export function listConfigVersions({ configs }: { configs: Configs }): Route {
  return {
    method: 'GET',
    path: '/v1/configs/:slug/versions',
    operationId: 'listConfigVersions',
    summary: 'List the versions of a config, newest first',
    tag: 'Configs',
    scope: 'configs.read',
    responses: { 200: { description: 'A page of versions.', schema: ConfigVersionList } },
    ...withInput(
      { params: z.object({ slug: z.string() }), query: ConfigVersionListQuery },
      async ({ params, query }, request, response) => {
        const { workspaceId } = callerOf(request);
        const config = await configs.get(workspaceId, params.slug);
        const page = { workspaceId, after: query.after ?? null, limit: query.limit };
        const rows = await configs.listVersions(page, config);
        response.json(
          toListResponse(
            rows.map((row) => toConfigVersionObject(config, row)),
            query.limit,
          ),
        );
      },
    ),
  };
}

/** GET /v1/configs/{slug}/versions/{version}: one of them, as it was and will be. Errors: not_found. */
export function retrieveConfigVersion({ configs }: { configs: Configs }): Route {
  return {
    method: 'GET',
    path: '/v1/configs/:slug/versions/:version',
    operationId: 'retrieveConfigVersion',
    summary: 'Retrieve a version of a config',
    tag: 'Configs',
    scope: 'configs.read',
    responses: { 200: { description: 'The version.', schema: ConfigVersionObject } },
    ...withInput({ params: ConfigVersionParams }, async ({ params }, request, response) => {
      const config = await configs.get(callerOf(request).workspaceId, params.slug);
      response.json(toConfigVersionObject(config, await configs.getVersion(config, params.version)));
    }),
  };
}
