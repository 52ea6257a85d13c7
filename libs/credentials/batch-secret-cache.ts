import type { Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { SecretMembers, Secrets } from '#libs/secrets/secrets.ts';

type Deps = {
  db: Kysely<Database>;
  secrets: Secrets;
  clock: Clock;
  holder?: string;
  cachedSecretsMax?: number;
  cachedSecretsMs?: number;
};

/** Keeps the decrypted secrets of running batches for a while, because a batch can have a million lines and one key. */
export function createBatchSecretCache({
  db,
  secrets,
  clock,
  holder = 'batch',
  cachedSecretsMax = 1_000,
  cachedSecretsMs = 300_000,
}: Deps) {
  const entries = new LRUCache<string, { workspaceId: string; members: Promise<SecretMembers>; untilMs: number }>({
    max: cachedSecretsMax,
  });

  const fetch = async (workspaceId: string, id: string): Promise<SecretMembers> => {
    const members = await secrets.read(db, workspaceId, id);
    if (members) return members;
    throw new GatewayError(
      'invalid_request',
      'batch_credential_released',
      `The credential of this ${holder} was wiped, because the ${holder} has ended.`,
    );
  };

  return {
    /** Lines that ask at the same time share one query. */
    read(workspaceId: string, id: string): Promise<SecretMembers> {
      const cached = entries.get(id);
      if (cached?.workspaceId === workspaceId && cached.untilMs > clock.now()) return cached.members;

      const members = fetch(workspaceId, id);
      entries.set(id, { workspaceId, members, untilMs: clock.now() + cachedSecretsMs });
      members.catch(() => entries.delete(id));
      return members;
    },
    forget: (id: string): void => void entries.delete(id),
  };
}
