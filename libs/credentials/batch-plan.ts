import type { BatchTarget } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { joinSecrets } from './configs/config-secrets.ts';
import { compileStoredConfig } from './configs/read-config.ts';
import type { FoundPlan, PlanDeps } from './configs/plan.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';

type ConfiguredTarget = Extract<BatchTarget, { caller: unknown }>;
type PinnedConfig = Extract<BatchTarget, { type: 'config' }>;

export type BatchPlanDeps = Pick<PlanDeps, 'snapshot' | 'plans'> & {
  /** Returns the stored data of a version of a record, without its secrets. undefined: there is no such version. */
  readVersion: (version: {
    workspaceId: string;
    id: string;
    number: number;
  }) => Promise<Record<string, unknown> | undefined>;
};

type Deps = BatchPlanDeps & {
  readSecret: (workspaceId: string, id: string) => Promise<SecretMembers>;
};

/** Makes the plans of batches that were created with a config. Each is read once for the many lines of a chunk. */
export function createBatchPlans({ readVersion, readSecret, snapshot, plans }: Deps) {
  // Keyed by the target in the row that a chunk was loaded with, so that entries, and the keys of inline configs, are
  // freed with the chunk.
  const byTarget = new WeakMap<ConfiguredTarget, Promise<FoundPlan>>();
  /** A version never changes, so its plan is cached, unless its config has secrets. */
  const planOfVersion = async (
    workspaceId: string,
    { config_id: id, config_version: version, secret_id }: PinnedConfig,
  ): Promise<Plan | null> => {
    const secretId = secret_id ?? null;
    const cacheKey = `${workspaceId} ${id} ${version}`;
    const cached = secretId === null ? plans.find(cacheKey) : undefined;
    if (cached !== undefined) return cached;
    const data = await readVersion({ workspaceId, id, number: version });
    if (!data) throw unreadable();
    const document = data['config'] as Record<string, unknown>;
    const plan = await join(workspaceId, document, secretId);
    if (secretId === null) plans.keep(cacheKey, JSON.stringify(document), plan);
    return plan;
  };

  const join = async (
    workspaceId: string,
    document: Record<string, unknown>,
    secretId: string | null,
  ): Promise<Plan | null> => {
    const whole = joinSecrets(document, secretId === null ? {} : await readSecret(workspaceId, secretId));
    return whole && compileStoredConfig(whole);
  };

  const read = async (workspaceId: string, target: ConfiguredTarget): Promise<FoundPlan> => {
    const found = { param: 'config', options: null, stored: null };
    if (target.type === 'config') {
      const { config_id: id, config_version: version } = target;
      const plan = await planOfVersion(workspaceId, target);
      if (plan === null) throw unreadable();
      // If a config was deleted meanwhile, only its ID is known.
      const slug = snapshot.findConfig(workspaceId, id)?.slug ?? id;
      return { ...found, plan, stored: { id, slug, version, secrets: {} } };
    }
    const plan = await join(workspaceId, target.config, target.secret_id);
    if (plan === null) throw unreadable();
    return { ...found, plan };
  };

  return {
    /** Throws GatewayError `config_unreadable`, and the error of the database when it is unavailable. */
    planOf(workspaceId: string, target: ConfiguredTarget): Promise<FoundPlan> {
      const known = byTarget.get(target);
      if (known) return known;
      const plan = read(workspaceId, target);
      byTarget.set(target, plan);
      plan.catch(() => byTarget.delete(target));
      return plan;
    },
  };
}

const unreadable = (): GatewayError =>
  new GatewayError(
    'invalid_request',
    'config_unreadable',
    'This release cannot read the config that the batch was created with.',
  );
