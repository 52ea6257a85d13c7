import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { SecretUnreadableError, type SecretMembers, type SecretOwner, type Secrets } from '#libs/secrets/secrets.ts';
import type { ResourceRow } from '../resource-row.ts';
import { versionedOnRequest, versionId } from './versions.ts';

type KindWithSecrets = Parameters<typeof versionedOnRequest>[0] & { secrets?: readonly string[] };
type Owner = Pick<ResourceRow, 'id' | 'workspace_id'>;

/** Stores the secrets of a kind's records, encrypted as one unit per record or per version. */
export function createSecretStore(kind: KindWithSecrets, secrets: Secrets) {
  const ownerOf = ({ id, workspace_id: workspaceId }: Owner, number: number | null): SecretOwner => ({
    workspaceId,
    ownerId: !kind.versions || number === null ? id : versionId(id, number),
  });
  return {
    /** Returns null if they cannot be decrypted. */
    async read(tx: Kysely<Database>, row: Owner & { last_version: number | null }): Promise<SecretMembers | null> {
      try {
        return (await secrets.readOwned(tx, ownerOf(row, row.last_version))) ?? {};
      } catch (error) {
        if (error instanceof SecretUnreadableError) return null;
        throw error;
      }
    },

    /** Splits a request into the members that are shown and those that are encrypted. */
    split(input: Record<string, unknown>): { open: Record<string, unknown>; given: SecretMembers } {
      const open = { ...input };
      const given: Record<string, Secret> = {};
      for (const name of kind.secrets ?? []) {
        const value = open[name];
        delete open[name];
        if (typeof value === 'string') given[name] = new Secret(value);
      }
      return { open, given };
    },

    /** Replaces the secrets of the version `before` with those of `now`. Returns the members for the event. */
    async replace(
      unit: UnitOfWork,
      row: Owner,
      members: SecretMembers,
      { before, now }: { before: number | null; now: number | null },
    ): Promise<{ secret_id?: string | null }> {
      if (!versionedOnRequest(kind)) await secrets.removeOwned(unit, ownerOf(row, before));
      const isEmpty = Object.keys(members).length === 0;
      const secretId = isEmpty ? null : await secrets.store(unit, ownerOf(row, now), members);
      return kind.versions ? {} : { secret_id: secretId };
    },

    /** Removes all secrets of a record. If changes are not published automatically, earlier versions have secrets too. */
    async removeAll(unit: UnitOfWork, row: Owner & { last_version: number | null }): Promise<void> {
      const last = row.last_version ?? 1;
      for (let number = versionedOnRequest(kind) ? 1 : last; number <= last; number += 1) {
        await secrets.removeOwned(unit, ownerOf(row, number));
      }
    },
  };
}
