import type { Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { BatchTarget, Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Plan } from '#libs/routing/plan.ts';
import { configVersionId } from './config-model.ts';
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
  const versions = new LRUCache<string, Plan>({ max: versionsMax });

  const planOfVersion = async (workspaceId: string, id: string): Promise<Plan> => {
    const cacheKey = `${workspaceId} ${id}`;
    const known = versions.get(cacheKey);
    if (known) return known;
    const row = await db
      .selectFrom('config_version')
      .select('config')
      .where('id', '=', id)
      .where('workspace_id', '=', workspaceId)
      .executeTakeFirst();
    const plan = row ? planOfStored(row.config) : null;
    if (plan === null) throw unreadable();
    versions.set(cacheKey, plan);
    return plan;
  };

  const read = async (workspaceId: string, target: ConfiguredTarget): Promise<FoundPlan> => {
    const found = { param: 'config', options: null };
    if (target.type === 'config') {
      const { config_id: id, config_version: version } = target;
      const plan = await planOfVersion(workspaceId, configVersionId(id, version));
      return { ...found, plan, stored: { id, version } };
    }
    const members = target.secret_id === null ? {} : await readSecret(workspaceId, target.secret_id);
    const plan = planOfStored(joinSecrets(target.config, members));
    if (plan === null) throw unreadable();
    return { ...found, plan, stored: null };
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
    'The config that this batch was created with cannot be read by this version.',
  );
