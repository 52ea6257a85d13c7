import type { Kysely } from 'kysely';
import {
  createAccessSnapshot,
  type AccessSnapshot,
  type AccessSnapshotOptions,
} from '#libs/snapshot/access-snapshot.ts';
import { createBatchTargets, type BatchTargets } from '#libs/credentials/batch-targets.ts';
import { checkMasterKeys, parseMasterKeys } from '#libs/secrets/master-key.ts';
import { createMappedSecrets } from '#libs/credentials/mapped-secrets.ts';
import { createPrompts, type Prompts } from '#libs/stored-prompts/prompts.ts';
import { createRouting, type Routing } from '#libs/credentials/routing.ts';
import { createDownloadLinks, type DownloadLinks } from '#libs/secrets/download-links.ts';
import { createSessions, type Sessions } from '#libs/secrets/sessions.ts';
import type { SecretCache } from '#libs/secret-managers/secret-cache.ts';
import { readVersion } from '#libs/records/traits/versions.ts';
import { createSecrets, type Secrets } from '#libs/secrets/secrets.ts';
import type { DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import { exitImmediately } from '#libs/kernel/lifecycle.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createPlanCache } from '#libs/credentials/configs/plan-cache.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';

export type Access = {
  secrets: Secrets;
  snapshot: AccessSnapshot;
  routing: Routing;
  prompts: Prompts;
  batchTargets: BatchTargets;
  fineTuningTargets: BatchTargets;
  downloadLinks: DownloadLinks;
  sessions: Sessions;
  /** Throws ConfigurationError if no master key belongs to this database; logs how many secrets need an older one. */
  checkMasterKey: () => Promise<void>;
};

/** Throws ConfigurationError if the master key is malformed. */
export function createAccess(deps: {
  db: Kysely<Database>;
  /** Set by the polls of the snapshot; decides when keys expire. */
  databaseClock: DatabaseClock;
  /** For LISTEN, which does not work through a pooler in transaction mode. */
  listenUrl: string;
  masterKey: string;
  onCredentialsChanged: Required<AccessSnapshotOptions>['onCredentialsChanged'];
  /** How long known keys stay valid while the database does not answer. */
  staleAfterMs: number;
  logger: Logger;
  /** Throws for a URL that must not be called. */
  checkDestination: (url: URL) => void;
  /** Records in memory and plans are charged to it. */
  memory: MemoryBudget;
  promptLimits: { outputCharsMax: number; cacheSizeMax: number };
  /** The secrets in secret managers. */
  secretCache: SecretCache;
}): Access {
  const { db, databaseClock: clock, logger, checkDestination } = deps;
  const masterKeys = parseMasterKeys(deps.masterKey);
  const secrets = createSecrets({ masterKeys });
  const plans = createPlanCache(deps.memory);
  const snapshot = createAccessSnapshot({
    db,
    memory: deps.memory,
    plans,
    secrets,
    logger,
    databaseClock: clock,
    listenConnectionString: deps.listenUrl,
    staleAfterMs: deps.staleAfterMs,
    onCredentialsChanged: deps.onCredentialsChanged,
    onRestored: () =>
      exitImmediately(
        logger,
        'the database was restored from a backup while this process was running; the process must be restarted',
      ),
  });
  const mappedSecrets = createMappedSecrets({ snapshot, cache: deps.secretCache });
  const targetDeps = {
    db,
    secrets,
    snapshot,
    clock,
    mappedSecrets,
    plans,
    checkDestination,
    readVersion: async (version: Parameters<typeof readVersion>[1]) => (await readVersion(db, version))?.data,
  };
  return {
    downloadLinks: createDownloadLinks(masterKeys),
    sessions: createSessions(masterKeys),
    secrets,
    snapshot,
    prompts: createPrompts({ db, secrets, snapshot, limits: deps.promptLimits }),
    routing: createRouting(targetDeps),
    batchTargets: createBatchTargets(targetDeps),
    fineTuningTargets: createBatchTargets({ ...targetDeps, holder: 'fine-tuning job' }),
    async checkMasterKey() {
      const needed = await checkMasterKeys(db, masterKeys);
      for (const [id, secrets] of Object.entries(needed)) {
        const index = masterKeys.findIndex((key) => key.id === id);
        const fields = { master_key_id: id, secrets };
        if (index > 0)
          logger.warn(fields, 'secrets are still encrypted with an old master key; run sluice keys rewrap');
        if (index === -1) logger.error(fields, 'secrets cannot be decrypted because SLUICE_MASTER_KEY lacks their key');
      }
    },
  };
}
