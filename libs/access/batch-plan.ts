import type { Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { BatchTarget, Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { versionId } from '#libs/resources/resource-model.ts';
import { joinSecrets } from './config-secrets.ts';
import { planOfStored } from './read-config.ts';
import type { FoundPlan } from './routing.ts';
import type { SecretMembers } from './secrets.ts';

type ConfiguredTarget = Extract<BatchTarget, { caller: unknown }>;

type Deps = {
  db: Kysely<Database>;
  readSecret: (workspaceId: string, id: string) => Promise<SecretMembers>;
};

const versionsMax = 500;

/** Plans of batches that were created with a config, each read once for the many lines of a chunk. */
export function createBatchPlans({ db, readSecret }: Deps) {
  // By the target of the row that a chunk was loaded with: gone with the chunk, and so are the keys of an inline config.
  const byTarget = new WeakMap<ConfiguredTarget, Promise<FoundPlan>>();
  // A version never changes.
  const versions = new LRUCache<string, { document: Record<string, unknown>; plan: Plan | null }>({ max: versionsMax });

  /** `plan` null: the config has secrets, without which it is no plan. */
  const readVersion = async (workspaceId: string, id: string) => {
    const cacheKey = `${workspaceId} ${id}`;
    const known = versions.get(cacheKey);
    if (known) return known;
    const row = await db
      .selectFrom('resource_version')
      .select('data')
      .where('id', '=', id)
      .where('workspace_id', '=', workspaceId)
      .executeTakeFirst();
    if (!row) throw unreadable();
    const document = row.data['config'] as Record<string, unknown>;
    const version = { document, plan: joinSecrets(document, {}) && planOfStored(document) };
    versions.set(cacheKey, version);
    return version;
  };

  const join = async (
    workspaceId: string,
    document: Record<string, unknown>,
    secretId: string | null,
  ): Promise<Plan | null> => {
    const whole = joinSecrets(document, secretId === null ? {} : await readSecret(workspaceId, secretId));
    return whole && planOfStored(whole);
  };

  const read = async (workspaceId: string, target: ConfiguredTarget): Promise<FoundPlan> => {
    const found = { param: 'config', options: null, stored: null };
    if (target.type === 'config') {
      const { config_id: id, config_version, secret_id } = target;
      const version = await readVersion(workspaceId, versionId(id, config_version));
      const plan = secret_id === undefined ? version.plan : await join(workspaceId, version.document, secret_id);
      if (plan === null) throw unreadable();
      return { ...found, plan };
    }
    const plan = await join(workspaceId, target.config, target.secret_id);
    if (plan === null) throw unreadable();
    return { ...found, plan };
  };

  return {
    /** Throws GatewayError `config_unreadable`, and what the database throws when it is away. */
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
