import type { Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { SecretMembers, Secrets } from '#libs/secrets/secrets.ts';

const secretsMax = 1_000;
/** A key must not stay in memory for long after its batch. */
const ttlMs = 300_000;

/**
 * Caches the decrypted secrets of running batches for a while, because a batch can have a million lines and one key.
 */
export function createBatchSecretCache(db: Kysely<Database>, secrets: Secrets, holder: string) {
  const entries = new LRUCache<string, { workspaceId: string; members: Promise<SecretMembers> }>({
    max: secretsMax,
    ttl: ttlMs,
  });

  const fetch = async (workspaceId: string, id: string): Promise<SecretMembers> => {
    const members = await secrets.read(db, workspaceId, id);
    if (members) return members;
    throw new GatewayError(
      'invalid_request',
      'batch_credential_released',
      `The credential of this ${holder} was deleted because the ${holder} has ended.`,
    );
  };

  return {
    /** Concurrent requests for a secret share one query. */
    read(workspaceId: string, id: string): Promise<SecretMembers> {
      const cached = entries.get(id);
      if (cached?.workspaceId === workspaceId) return cached.members;
      const members = fetch(workspaceId, id);
      entries.set(id, { workspaceId, members });
      members.catch(() => entries.delete(id));
      return members;
    },
    forget: (id: string): void => void entries.delete(id),
  };
}
