import { sql, type Kysely, type Selectable } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Checkpoint } from '#libs/event-log/read-events.ts';
import type { HashedEvent } from '#libs/event-log/read-hashes.ts';
import { ensureCheckpoint, moveTo } from '#libs/event-log/subscriber.ts';
import type { Head } from './entries.ts';
import { edgeAt, type Edge } from './tiles.ts';

/** The name of the seal's checkpoint among those of the subscribers. */
export const sealName = 'seal';

/** How far the log is sealed. `tree`: the number of the tree that grows, 0 before the first one. */
export type SealState = {
  tree: number;
  /** The name of the log in its checkpoints. */
  name: string;
  /** The tree has no events of later epochs. */
  epoch: number;
  edge: Edge;
  /** The newest signed checkpoint. */
  checkpoint: string;
};

type SealRow = Pick<
  Selectable<Database['seal']>,
  'tree' | 'name' | 'epoch' | 'size' | 'hashes' | 'bundle' | 'checkpoint'
>;

/** Longer than a step takes, and how long sealing pauses after a worker was killed. */
const leaseFor = sql.raw(`interval '10 seconds'`);

/** Returns the state if this process is the one that seals; null if another one is. A process keeps the lease with every step. */
export async function takeLease(db: Kysely<Database>, holder: string): Promise<SealState | null> {
  await ensureCheckpoint(db, { name: sealName });
  const { rows } = await sql<SealRow>`
    update seal set holder = ${holder}, held_until = clock_timestamp() + ${leaseFor}
    where holder = ${holder} or held_until < clock_timestamp()
    returning tree, name, epoch, size, hashes, bundle, checkpoint`.execute(db);
  const [row] = rows;
  if (row === undefined) return null;
  const { size, hashes, bundle, ...state } = row;
  return { ...state, edge: edgeAt({ size, hashes, bundle }) };
}

export async function endLease(db: Kysely<Database>, holder: string): Promise<void> {
  await sql`update seal set holder = null, held_until = '-infinity' where holder = ${holder}`.execute(db);
}

export async function readHeads(db: Kysely<Database>, events: readonly HashedEvent[]): Promise<Map<string, Head>> {
  const ids = [...new Set(events.map(({ workspaceId }) => workspaceId))];
  const rows =
    ids.length === 0
      ? []
      : await db.selectFrom('seal_workspace').selectAll().where('workspace_id', 'in', ids).execute();
  return new Map(rows.map(({ workspace_id: id, number, sha256 }) => [id, { number, sha256 }]));
}

/**
 * Stores the next state with the checkpoint of the last event that it seals, in one transaction. Returns false, without
 * storing anything, if another process has sealed since `before` was read.
 */
export async function saveState(
  db: Kysely<Database>,
  {
    holder,
    before,
    after,
    heads,
    places,
    last,
    publishes,
  }: {
    holder: string;
    before: SealState;
    after: SealState;
    heads: ReadonlyMap<string, Head>;
    /** Events whose indexes in the tree are stored. */
    places: readonly (Checkpoint & { index: number })[];
    last: HashedEvent | undefined;
    /** Whether the new checkpoint will be published. */
    publishes: boolean;
  },
): Promise<boolean> {
  const { tree, name, epoch, edge, checkpoint } = after;
  return await db.transaction().execute(async (tx) => {
    const { rows } = await sql`
      update seal set tree = ${tree}, name = ${name}, epoch = ${epoch}, size = ${edge.size},
        hashes = ${Buffer.concat(edge.levels)}, bundle = ${edge.bundle}, checkpoint = ${checkpoint},
        unpublished_since = case when ${publishes} then coalesce(unpublished_since, clock_timestamp()) end
      where holder = ${holder} and tree = ${before.tree} and size = ${before.edge.size} returning true`.execute(tx);
    if (rows.length === 0) return false;
    if (last !== undefined) await moveTo(tx, sealName, last);
    const rowsOfHeads = Array.from(heads, ([id, { number, sha256 }]) => ({ workspace_id: id, number, sha256 }));
    for (let at = 0; at < rowsOfHeads.length; at += headsAtOnce) {
      await tx
        .insertInto('seal_workspace')
        .values(rowsOfHeads.slice(at, at + headsAtOnce))
        .onConflict((on) =>
          on.column('workspace_id').doUpdateSet((row) => ({
            number: row.ref('excluded.number'),
            sha256: row.ref('excluded.sha256'),
          })),
        )
        .execute();
    }
    if (places.length > 0) {
      const rowsOfPlaces = places.map(({ transactionId, epoch: ofEvent, position, index }) => {
        return { epoch: ofEvent, transaction_id: transactionId, position, tree, index };
      });
      await tx
        .insertInto('seal_place')
        .values(rowsOfPlaces)
        // After the tree was lost, the same events can be in another one.
        .onConflict((on) =>
          on.columns(['epoch', 'transaction_id', 'position']).doUpdateSet((row) => ({
            tree: row.ref('excluded.tree'),
            index: row.ref('excluded.index'),
          })),
        )
        .execute();
    }
    return true;
  });
}

/** A statement has at most 65,535 parameters. */
const headsAtOnce = 1_000;

/** Returns the newest checkpoint and its tree; null before the first one. */
export async function readNewestCheckpoint(
  db: Kysely<Database>,
): Promise<{ tree: number; name: string; checkpoint: string } | null> {
  const row = await db.selectFrom('seal').select(['tree', 'name', 'checkpoint']).executeTakeFirst();
  return row === undefined || row.tree === 0 ? null : row;
}
