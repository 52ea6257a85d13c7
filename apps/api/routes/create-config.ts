import type { Configs } from '#libs/access/configs.ts';
import { ConfigObject, CreateConfigRequest } from '#libs/contracts/configs.ts';
import { fingerprintOf } from '#libs/event-log/idempotency.ts';
import { jsonBodyOf } from '#libs/http/json-body.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { callIdentityOf, eventMetadataOf } from '#libs/identity/call-identity.ts';

/** POST /v1/configs. Errors: invalid_request (the config, at the member at fault), conflict (slug_taken). */
export function createConfig({ configs }: { configs: Configs }): Route {
  return {
    method: 'POST',
    path: '/v1/configs',
    operationId: 'createConfig',
    summary: 'Store a config under a slug',
    tag: 'Configs',
    scope: 'configs.write',
    responses: { 200: { description: 'The config, version 1.', schema: ConfigObject } },
    ...withInput({ body: CreateConfigRequest }, async ({ body }, request, response) => {
      const call = { ...callIdentityOf(request), fingerprint: fingerprintOf(jsonBodyOf(request).bytes) };
      const { record, replayed } = await configs.create(call, eventMetadataOf(request), body);
      if (replayed) response.setHeader('idempotent-replayed', 'true');
      response.json(record);
    }),
  };
}
