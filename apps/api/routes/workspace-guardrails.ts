import type { WorkspaceGuardrails } from '#libs/access/workspace-guardrails.ts';
import { GuardrailsObject, SetGuardrailsRequest } from '#libs/contracts/workspaces.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

type Deps = { workspaceGuardrails: WorkspaceGuardrails };

const object = 'workspace.guardrails';

/** GET /v1/admin/guardrails: those that every call of the workspace passes. */
export function retrieveGuardrails({ workspaceGuardrails }: Deps): Route {
  return {
    method: 'GET',
    path: '/v1/admin/guardrails',
    operationId: 'retrieveGuardrails',
    summary: 'Retrieve the guardrails of the workspace',
    tag: 'Workspaces',
    scope: 'workspaces.read',
    responses: { 200: { description: 'Both lists, without secrets.', schema: GuardrailsObject } },
    handler: async (request, response) => {
      response.json({ object, ...(await workspaceGuardrails.get(callerOf(request).workspaceId)) });
    },
  };
}

/** PUT /v1/admin/guardrails. Replaces both lists, for calls and batch lines alike. Errors: invalid_request. */
export function setGuardrails({ workspaceGuardrails }: Deps): Route {
  return {
    method: 'PUT',
    path: '/v1/admin/guardrails',
    operationId: 'setGuardrails',
    summary: 'Set the guardrails that apply to all calls of the workspace',
    tag: 'Workspaces',
    scope: 'workspaces.write',
    responses: { 200: { description: 'Both lists, without secrets.', schema: GuardrailsObject } },
    ...withInput({ body: SetGuardrailsRequest }, async ({ body }, request, response) => {
      const { workspaceId } = callerOf(request);
      response.json({ object, ...(await workspaceGuardrails.set(workspaceId, eventMetadataOf(request), body)) });
    }),
  };
}
