import { sql, type Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { Database } from '#libs/database/schema.ts';

/**
 * An object that a provider stores under its own ID. Everything inside an object, such as a message, is reached through
 * it.
 */
export type ObjectKind = 'response' | 'conversation' | 'assistant' | 'thread' | 'vector_store' | 'model';

/** One workspace in the account that it shares with others. `accountId` is the ID of the integration. */
export type Holder = { accountId: string; workspaceId: string };

/** Records which workspace created which object in an account that workspaces share. */
export type ObjectOwners = {
  /** Returns the IDs in the list whose objects the workspace created. */
  ownedBy: (holder: Holder, ids: readonly string[]) => Promise<ReadonlySet<string>>;
  /** The first workspace that records an ID owns it. */
  record: (holder: Holder, kind: ObjectKind, ids: readonly string[]) => Promise<void>;
  forget: (holder: Holder, id: string) => Promise<void>;
};

const cachedMax = 10_000;

export function createObjectOwners(db: Kysely<Database>): ObjectOwners {
  // The owner of an object never changes, so only its deletion makes an entry obsolete. The provider then answers 404.
  const cache = new LRUCache<string, string>({ max: cachedMax });
  const keyOf = (accountId: string, id: string): string => `${accountId} ${id}`;
  return {
    async ownedBy({ accountId, workspaceId }, ids) {
      const unknown = ids.filter((id) => cache.get(keyOf(accountId, id)) === undefined);
      if (unknown.length > 0) {
        const rows = await db
          .selectFrom('stored_object')
          .select(['object_id', 'workspace_id'])
          .where('account_id', '=', accountId)
          .where('object_id', '=', sql<string>`any(${unknown}::text[])`)
          .execute();
        for (const { object_id: id, workspace_id: owner } of rows) cache.set(keyOf(accountId, id), owner);
      }
      return new Set(ids.filter((id) => cache.get(keyOf(accountId, id)) === workspaceId));
    },
    async record({ accountId, workspaceId }, kind, ids) {
      if (ids.length === 0) return;
      await sql`
        insert into stored_object (account_id, object_id, workspace_id, kind)
        select ${accountId}, id, ${workspaceId}, ${kind} from unnest(${[...ids].toSorted()}::text[]) as id
        on conflict do nothing`.execute(db);
    },
    async forget({ accountId, workspaceId }, id) {
      cache.delete(keyOf(accountId, id));
      await db
        .deleteFrom('stored_object')
        .where('account_id', '=', accountId)
        .where('object_id', '=', id)
        .where('workspace_id', '=', workspaceId)
        .execute();
    },
  };
}

/** Providers keep responses for 30 days. */
const responseDays = 40;
/** For each kind in each account, the newest objects of every workspace are remembered. */
const objectsMax = 100_000;

/** Forgets responses that providers have deleted by now, and the oldest objects of workspaces that have too many. */
export async function sweepStoredObjects(db: Kysely<Database>, max = objectsMax): Promise<void> {
  await sql`
    delete from stored_object
    where kind = 'response' and created_at < clock_timestamp() - ${responseDays} * interval '1 day'`.execute(db);
  await sql`
    with crowded as (
      select workspace_id, account_id, kind from stored_object group by 1, 2, 3 having count(*) > ${max}
    )
    delete from stored_object using crowded
    where stored_object.workspace_id = crowded.workspace_id and stored_object.account_id = crowded.account_id
      and stored_object.kind = crowded.kind and stored_object.object_id not in (
        select object_id from stored_object as kept
        where kept.workspace_id = crowded.workspace_id and kept.account_id = crowded.account_id
          and kept.kind = crowded.kind
        order by created_at desc, object_id limit ${max})`.execute(db);
}
