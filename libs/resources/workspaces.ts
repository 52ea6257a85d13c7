import { readDocument, storeDocumentSecrets } from '#libs/access/config-document.ts';
import { joinSecrets, redactSecrets } from '#libs/access/config-secrets.ts';
import { planOfStored } from '#libs/access/read-config.ts';
import type { AddedGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import {
  GuardrailsObject,
  SetGuardrailsRequest,
  WorkspaceObject,
  workspaceFields,
} from '#libs/contracts/workspaces.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { z } from 'zod';
import { defineResource } from './define-resource.ts';
import { resourceModel } from './resource-model.ts';

/** As their author wrote them, without their secrets (libs/access/config-secrets.ts). */
type GuardrailDocument = { input_guardrails: object[]; output_guardrails: object[] };

export type WorkspaceData = {
  name: string;
  description?: string | null;
  /** Absent for none. */
  guardrails?: GuardrailDocument;
};

export type LiveWorkspace = {
  /** Of every call; undefined for none, null when this process cannot read them (a newer release stored them). */
  readonly guardrails: AddedGuardrails | null | undefined;
};

const noGuardrails: GuardrailDocument = { input_guardrails: [], output_guardrails: [] };
const guardrailsObject = 'workspace.guardrails';

/**
 * The unit of isolation: every other record belongs to one. The keys of a deleted workspace, and everything else in it,
 * can no longer be used. Only keys of the organisation make, change and delete workspaces.
 */
export const workspaceKind = defineResource<typeof workspaceFields, WorkspaceData, LiveWorkspace>({
  noun: 'workspace',
  idPrefix: 'ws_',
  area: 'workspaces',
  path: '/v1/admin/workspaces',
  names: { one: 'workspace', many: 'workspaces', tag: 'Workspaces' },
  owner: 'itself',
  fields: workspaceFields,
  slug: true,
  filters: {
    name: { schema: z.string().max(200), field: 'name', match: 'contains' },
    exact_name: { schema: z.string().max(200), field: 'name', match: 'equal' },
  },

  checkRemoval({ id }, caller) {
    if (id !== caller.workspaceId) return;
    const message = 'The key of this request belongs to this workspace: delete it with a key of another workspace.';
    throw new GatewayError('conflict', 'own_workspace', message, { param: 'slug' });
  },

  events: {
    // The whole new lists; empty ones for none.
    guardrails_set({ guardrails: _before, ...rest }, { data }) {
      const document: GuardrailDocument = data;
      const isNone = document.input_guardrails.length === 0 && document.output_guardrails.length === 0;
      return isNone ? rest : { ...rest, guardrails: document };
    },
  },

  view: ({ id, slug, data, created_at, updated_at, deleted_at }) => ({
    id,
    object: 'workspace',
    slug: slug ?? id,
    name: data.name,
    description: data.description ?? null,
    status: deleted_at ? 'archived' : 'active',
    created_at: created_at.toISOString(),
    last_updated_at: updated_at.toISOString(),
  }),
  viewSchema: WorkspaceObject,

  cached: {
    toEntry({ id, data: { guardrails } }, secrets, logger) {
      if (guardrails === undefined) return { guardrails };
      const whole = secrets && joinSecrets(guardrails, secrets);
      const plan = whole && planOfStored(whole);
      if (plan === null) logger.error({ workspace_id: id }, 'the guardrails of a workspace cannot be read');
      return { guardrails: plan && (plan.leaves[0] ?? null) };
    },
  },

  routes: (store, { secrets, checkDestination }) => [
    {
      method: 'GET',
      path: '/v1/admin/guardrails',
      operationId: 'retrieveGuardrails',
      summary: 'Retrieve the guardrails of the workspace',
      tag: 'Workspaces',
      scope: 'workspaces.read',
      responses: { 200: { description: 'Both lists, secrets left out.', schema: GuardrailsObject } },
      handler: async (request, response) => {
        const { workspaceId } = callerOf(request);
        const { data } = await store.get({ workspaceId, name: workspaceId });
        response.json({ object: guardrailsObject, ...redactSecrets(data.guardrails ?? noGuardrails) });
      },
    },
    {
      method: 'PUT',
      path: '/v1/admin/guardrails',
      operationId: 'setGuardrails',
      summary: 'Set the guardrails of the workspace, which no call can leave out',
      tag: 'Workspaces',
      scope: 'workspaces.write',
      responses: { 200: { description: 'Both lists, secrets left out.', schema: GuardrailsObject } },
      ...withInput({ body: SetGuardrailsRequest }, async ({ body }, request, response) => {
        // The lists are those of a config, and so are their rules.
        const judged = readDocument(body, 'guardrails', checkDestination);
        const { workspaceId } = callerOf(request);
        const owner = { workspaceId, ownerId: workspaceId };
        let open: object = noGuardrails;
        await store.change({ workspaceId, name: workspaceId }, eventMetadataOf(request), async (unit) => {
          await secrets.removeOwned(unit, owner);
          const data = await storeDocumentSecrets(secrets, unit, owner, judged);
          open = data;
          return [{ type: 'workspace.guardrails_set', data }];
        });
        response.json({ object: guardrailsObject, ...open });
      }),
    },
  ],
});

/** For the commands that make workspaces beside the routes. */
export const workspaceModel = resourceModel([workspaceKind]);
