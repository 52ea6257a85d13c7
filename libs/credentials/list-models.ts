import type { z } from 'zod';
import type { Routing } from './routing.ts';
import { ModelList, ModelObject } from '#libs/contracts/calls/models.ts';
import { allows } from '#libs/calls/allowed-models.ts';
import type { Calls } from '#libs/calls/calls.ts';
import type { Target } from '#libs/calls/call.ts';
import type { StoredObjects } from '#libs/calls/protect/stored-objects/stored-objects.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';

export type ModelDeps = {
  routing: Pick<Routing, 'targetOf'>;
  /** Slugs of the workspace's virtual keys and providers. */
  virtualKeySlugs: (workspaceId: string) => Promise<string[]>;
  calls: Pick<Calls, 'listModels'>;
  storedObjects: Pick<StoredObjects, 'withoutForeign'>;
  logger: Logger;
};
type Model = z.output<typeof ModelObject>;
type WantedModels = Pick<Parameters<Routing['targetOf']>[0], 'workspaceId' | 'credentials' | 'defaults'>;

/** Working providers return their list within a second. */
const listedWaitMs = 3_000;

/**
 * The models that a call with these credentials can use: those of the provider that it names, under their own names, or of
 * all virtual keys and providers of the workspace as `@virtual-key/model`. A provider that does not answer in time is left
 * out, unless no provider answers.
 */
export async function listModels(
  { calls, storedObjects, logger, ...deps }: ModelDeps,
  wanted: WantedModels,
  left: AbortSignal,
): Promise<Model[]> {
  const targets = await targetsOf(deps, wanted);
  // A call for one provider waits for it. In a list, one hanging provider must not delay all the others.
  const signal = targets.length > 1 ? AbortSignal.any([left, AbortSignal.timeout(listedWaitMs)]) : left;
  const lists = await Promise.allSettled(
    targets.map(async ({ target, prefix }) => {
      const place = { workspaceId: wanted.workspaceId, credential: target };
      const models = await storedObjects.withoutForeign(place, await listOf(calls, target, signal));
      return models.map((model) => ({ ...model, id: `${prefix}${model.id}` }));
    }),
  );
  const failures = lists.filter((list) => list.status === 'rejected');
  for (const { reason } of failures) logger.warn(toLogFields(reason), 'a provider did not return its models');
  // One unavailable provider must not hide the others. If none answers, the caller gets the reason.
  if (failures.length > 0 && failures.length === lists.length) throw failures[0]?.reason;
  return lists.flatMap((list) => (list.status === 'fulfilled' ? list.value : []));
}

/** An unavailable provider would be logged on every call, so it is logged without a stack; a bug keeps its stack. */
const toLogFields = (reason: unknown): Record<string, unknown> =>
  reason instanceof GatewayError ? { code: reason.code, message: reason.message } : { err: reason };

type Listed = { target: Target; prefix: string };

async function targetsOf(
  deps: Pick<ModelDeps, 'routing' | 'virtualKeySlugs'>,
  { workspaceId, credentials, defaults }: WantedModels,
): Promise<Listed[]> {
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

/** The listed models that the credential allows, and its custom models that the provider does not list. */
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
  const message = `${target.label} did not return a list of models (status ${answer.status}).`;
  throw new GatewayError('provider_failed', 'upstream_invalid_response', message);
}
