import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Usage } from '#libs/prices/usage.ts';

/** The tokens that were counted for an object. */
export type CountedTokens = Pick<Usage, 'inputTokens' | 'outputTokens'>;

/**
 * The estimates that were counted for objects that providers work on in the background, such as assistant runs. Any
 * process that reads such an object later counts the rest of its usage, once. Never rejects: a failure is logged.
 */
export type LateUsage = {
  /** Adds to the tokens that were counted for an object. */
  record: (workspaceId: string, objectId: string, counted: CountedTokens) => Promise<void>;
  /** Removes and returns the tokens that were counted for an object; null if none are recorded. */
  take: (workspaceId: string, objectId: string) => Promise<CountedTokens | null>;
};

/** An ID that a path of the API can name. No other object can be read later. */
const idShape = /^[\w.:-]{1,200}$/;
/** How many rows are written concurrently. Further objects are not recorded. */
const writesMax = 1_000;

export function createLateUsage({ db, logger }: { db: Kysely<Database>; logger: Logger }): LateUsage {
  /** Rows that are being written. A client can read its object before they are committed. */
  const writing = new Map<string, Promise<void>>();

  const write = async (workspaceId: string, objectId: string, counted: CountedTokens): Promise<void> => {
    try {
      await sql`
        insert into late_usage (workspace_id, object_id, input_tokens, output_tokens)
        values (${workspaceId}, ${objectId}, ${counted.inputTokens}, ${counted.outputTokens})
        on conflict (workspace_id, object_id) do update set
          input_tokens = late_usage.input_tokens + excluded.input_tokens,
          output_tokens = late_usage.output_tokens + excluded.output_tokens`.execute(db);
    } catch (error) {
      const message = 'late usage cannot be recorded: limits count the estimate of an object';
      logger.warn({ err: error, workspace_id: workspaceId, object_id: objectId }, message);
    }
  };

  return {
    async record(workspaceId, objectId, counted) {
      if (!idShape.test(objectId) || writing.size >= writesMax) return;
      const key = `${workspaceId} ${objectId}`;
      const written = Promise.all([writing.get(key), write(workspaceId, objectId, counted)]).then(() => {});
      writing.set(key, written);
      await written;
      if (writing.get(key) === written) writing.delete(key);
    },
    async take(workspaceId, objectId) {
      if (!idShape.test(objectId)) return null;
      await writing.get(`${workspaceId} ${objectId}`);
      try {
        const taken = await db
          .deleteFrom('late_usage')
          .where('workspace_id', '=', workspaceId)
          .where('object_id', '=', objectId)
          .returning(['input_tokens as inputTokens', 'output_tokens as outputTokens'])
          .executeTakeFirst();
        return taken ?? null;
      } catch (error) {
        logger.warn({ err: error, workspace_id: workspaceId, object_id: objectId }, 'late usage cannot be counted yet');
        return null;
      }
    },
  };
}

/** Providers keep responses for 30 days. */
const keptDays = 40;
/** The newest objects of every workspace are kept. */
const objectsMax = 100_000;

/** Forgets objects that are no longer read, and the oldest ones of workspaces that have too many. */
export async function sweepLateUsage(db: Kysely<Database>, max = objectsMax): Promise<void> {
  await sql`
    delete from late_usage where created_at < clock_timestamp() - ${keptDays} * interval '1 day'`.execute(db);
  await sql`
    with crowded as (select workspace_id from late_usage group by 1 having count(*) > ${max}),
    surplus as (
      select old.workspace_id, old.object_id from crowded, lateral (
        select workspace_id, object_id from late_usage where late_usage.workspace_id = crowded.workspace_id
        order by created_at desc, object_id offset ${max}) as old
    )
    delete from late_usage using surplus
    where late_usage.workspace_id = surplus.workspace_id and late_usage.object_id = surplus.object_id`.execute(db);
}
