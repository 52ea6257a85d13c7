import type { Request, Response } from 'express';
import { z } from 'zod';
import { credentialHeaders, credentialsOf } from '#libs/access/request-credentials.ts';
import type { Routing } from '#libs/access/routing.ts';
import { ModelList, ModelObject } from '#libs/contracts/models.ts';
import { allows } from '#libs/calls/allowed-models.ts';
import type { Calls } from '#libs/calls/calls.ts';
import type { Target } from '#libs/calls/call.ts';
import type { StoredObjects } from '#libs/calls/protect/stored-objects/stored-objects.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logger.ts';

export type ModelDeps = {
  routing: Pick<Routing, 'targetOf'>;
  /** Slugs of the workspace's virtual keys and providers. */
  virtualKeySlugs: (workspaceId: string) => Promise<string[]>;
  calls: Pick<Calls, 'listModels'>;
  storedObjects: Pick<StoredObjects, 'withoutForeign'>;
  logger: Logger;
};
type Model = z.output<typeof ModelObject>;

/** Codex sends its version when it lists models; the answer does not depend on it. */
const ModelQuery = z.object({ client_version: z.string().optional().describe('Ignored; sent by some clients.') });

/** Working providers return their list within a second. */
const listedWaitMs = 3_000;

/**
 * GET /v1/models. If the call names a provider, it lists that provider's models. Otherwise it lists the models of all virtual
 * keys of the workspace as `@virtual-key/model`, the form that a request's `model` takes.
 */
export function listModels(deps: ModelDeps): Route {
  return {
    method: 'GET',
    path: '/v1/models',
    operationId: 'listModels',
    summary: 'List the models that the key can use',
    description:
      'Lists the models of all virtual keys and providers of the workspace, with IDs like `@virtual-key/model`. With ' +
      '`x-gateway-virtual-key` or `x-gateway-provider`, it lists the models of that provider under their original ' +
      'names. Providers that do not answer in time are omitted.',
    errors: { upstream_invalid_response: 'no provider returned a valid list of models' },
    tag: 'Models',
    scope: 'models.read',
    request: { query: ModelQuery, headers: credentialHeaders },
    responses: { 200: { description: 'The models.', schema: ModelList } },
    handler: async (request, response) => {
      response.json({ object: 'list', data: await modelsOf(deps, request, response) });
    },
  };
}

/** GET /v1/models/{model}: one model of the list. Errors: not_found. */
export function retrieveModel(deps: ModelDeps): Route {
  return {
    method: 'GET',
    path: '/v1/models/:model',
    operationId: 'retrieveModel',
    summary: 'Retrieve a model',
    description:
      'Takes the ID from the list (`@virtual-key/model`) or, with the header `x-gateway-virtual-key`, the name that the ' +
      'provider uses.',
    errors: { model_not_found: 'no provider available to the key has this model' },
    tag: 'Models',
    scope: 'models.read',
    responses: { 200: { description: 'The model.', schema: ModelObject } },
    ...withInput(
      { params: z.object({ model: z.string() }), headers: credentialHeaders },
      async ({ params }, request, response) => {
        const model = (await modelsOf(deps, request, response)).find(({ id }) => id === params.model);
        if (!model) {
          const message = `The model '${params.model}' does not exist or you do not have access to it.`;
          throw new GatewayError('not_found', 'model_not_found', message, { param: 'model' });
        }
        response.json(model);
      },
    ),
  };
}

async function modelsOf(
  { calls, storedObjects, logger, ...deps }: ModelDeps,
  request: Request,
  response: Response,
): Promise<Model[]> {
  const left = abortWhenClientLeaves(response).signal;
  const targets = await targetsOf(deps, request);
  // A call for one provider waits for it. In a list, one hanging provider must not delay all the others.
  const signal = targets.length > 1 ? AbortSignal.any([left, AbortSignal.timeout(listedWaitMs)]) : left;
  const lists = await Promise.allSettled(
    targets.map(async ({ target, prefix }) => {
      const place = { workspaceId: callerOf(request).workspaceId, credential: target };
      const models = await storedObjects.withoutForeign(place, await listOf(calls, target, signal));
      return models.map((model) => ({ ...model, id: `${prefix}${model.id}` }));
    }),
  );
  const failures = lists.filter((list) => list.status === 'rejected');
  for (const { reason } of failures) logger.warn(toLogFields(reason), 'a provider did not list its models');
  // One unavailable provider must not hide the others. If none answers, the caller gets the reason.
  if (failures.length > 0 && failures.length === lists.length) throw failures[0]?.reason;
  return lists.flatMap((list) => (list.status === 'fulfilled' ? list.value : []));
}

/** An unavailable provider would be logged on every call, so it is logged without a stack; a bug keeps its stack. */
const toLogFields = (reason: unknown): Record<string, unknown> =>
  reason instanceof GatewayError ? { code: reason.code, message: reason.message } : { err: reason };

type Listed = { target: Target; prefix: string };

async function targetsOf(deps: Pick<ModelDeps, 'routing' | 'virtualKeySlugs'>, request: Request): Promise<Listed[]> {
  const { workspaceId, defaults } = callerOf(request);
  const credentials = credentialsOf(request.headers);
  const named = credentials.virtualKey ?? credentials.provider ?? credentials.config ?? defaults.configId;
  if (named !== null) {
    const { target } = await deps.routing.targetOf({ workspaceId, credentials, model: null, defaults });
    return [{ target, prefix: '' }];
  }
  const slugs = await deps.virtualKeySlugs(workspaceId);
  const targets = slugs.map(async (slug) => {
    const { target } = await deps.routing.targetOf({ workspaceId, credentials, model: `@${slug}/any`, defaults });
    return { target, prefix: `@${slug}/` };
  });
  const usable = await Promise.allSettled(targets);
  return usable.flatMap((entry) => (entry.status === 'fulfilled' ? [entry.value] : []));
}

/** Of the models that a provider lists those that the credential is for, and those that the provider does not list. */
function allowedOf(models: Model[], { models: allowed, provider }: Target): Model[] {
  if (allowed === undefined) return models;
  const listed = new Set(models.map(({ id }) => id));
  const custom = allowed.custom.filter((id) => !listed.has(id));
  return [
    ...models.filter(({ id }) => allows(allowed, id)),
    ...custom.map((id) => ({ id, object: 'model' as const, created: 0, owned_by: provider })),
  ];
}

async function listOf(calls: ModelDeps['calls'], target: Target, signal: AbortSignal): Promise<Model[]> {
  const answer = await calls.listModels(target, signal);
  if (answer.kind === 'failed') throw answer.error;
  const body: unknown = answer.kind === 'json' && answer.status < 400 ? JSON.parse(answer.body.toString('utf8')) : null;
  const list = ModelList.safeParse(body);
  if (list.success) return allowedOf(list.data.data, target);
  const message = `${target.label} did not answer with a list of models (status ${answer.status}).`;
  throw new GatewayError('provider_failed', 'upstream_invalid_response', message);
}
