import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { createRunningRoot, hashLeaf } from '#libs/seal/merkle-tree.ts';
import { lowestLogUuid, toLogId } from '../row/log-id.ts';
import { listLogDays } from '../write/log-partitions.ts';
import { readSealedRows, requestLogModel, sealStream, sealType, toLeaf, type CallsSealed } from './sealed-calls.ts';
import { countRecords, findUnsealed, type UnsealedRows } from './unsealed-calls.ts';

const dayMs = 86_400_000;
/** After a page, the process rests four times as long, so that sealing never takes more than a fifth of a processor. */
const restFactor = 4;

type Deps = {
  db: Kysely<Database>;
  eventLog: Pick<EventLog, 'transact'>;
  logger: Logger;
  /** For tests. */
  limits?: { recordsMax?: number; groupsMax?: number };
};

const metadata = { actor: { type: 'system' as const, id: 'seal' } };

/**
 * Seals the calls of all workspaces that were recorded since the last time: for each workspace an event with their root
 * (decision 60). Several processes can do this concurrently. A crash loses nothing: an event and the sealed positions are
 * one transaction. Returns the number of sealed records.
 */
export async function sealCalls(deps: Deps): Promise<number> {
  const { db, limits } = deps;
  let records = 0;
  for (let hasMore = true; hasMore;) {
    const { seals, due, isWhole } = await findUnsealed(db, limits);
    let unsealed = 0;
    for (const groups of seals) {
      if (await sealWorkspace(deps, groups)) records += countRecords(groups);
      else unsealed += 1;
    }
    if (isWhole && unsealed === 0) await sql`delete from call_seal_due where id = any(${due}::bigint[])`.execute(db);
    hasMore = !isWhole && unsealed < seals.length;
  }
  await forgetDeleted(db);
  return records;
}

/** Returns false if another process sealed these rows, or retention deleted some of them, in the meantime. */
async function sealWorkspace({ db, eventLog, logger }: Deps, groups: readonly UnsealedRows[]): Promise<boolean> {
  const [{ workspaceId }] = groups as [UnsealedRows];
  const firstId = groups.reduce((low, group) => (group.firstId < low ? group.firstId : low), groups[0]?.firstId ?? '');
  const lastId = groups.reduce((high, group) => (group.lastId > high ? group.lastId : high), '');
  const seal = {
    records: countRecords(groups),
    first_id: toLogId(firstId),
    last_id: toLogId(lastId),
    processes: groups.map(({ processId, first, last, records }) => ({ process_id: processId, first, last, records })),
  };
  const leaves = await hashLeaves(db, workspaceId, seal);
  if (leaves === null) {
    logger.warn({ workspace_id: workspaceId }, 'calls changed while they were sealed; the next run seals them');
    return false;
  }
  const { root, hashes } = leaves;
  const stream = sealStream(workspaceId);
  return await eventLog.transact({ workspaceId, streams: [stream], metadata }, async (unit) => {
    if (!(await movePositions(unit.tx, groups))) return false;
    const data = { ...seal, root: root.toString('hex') };
    const row = await unit.append(requestLogModel, stream, [{ type: sealType, data }]);
    const place = { workspace_id: workspaceId, first_id: firstId, last_id: lastId };
    await unit.tx
      .insertInto('call_seal')
      .values({ event_id: row.last_event_id ?? '', ...place, hashes })
      .execute();
    return true;
  });
}

/** The root and the hashes of the leaves of a seal; null if it does not have as many rows as it should. */
async function hashLeaves(
  db: Kysely<Database>,
  workspaceId: string,
  seal: Omit<CallsSealed, 'root'>,
): Promise<{ root: Buffer; hashes: Buffer } | null> {
  const running = createRunningRoot();
  const hashes = Buffer.alloc(seal.records * 32);
  let count = 0;
  let startedMs = performance.now();
  for await (const rows of readSealedRows(db, workspaceId, seal)) {
    if (count + rows.length > seal.records) return null;
    for (const row of rows) {
      const leaf = hashLeaf(toLeaf(row));
      running.add(leaf);
      hashes.set(leaf, 32 * count);
      count += 1;
    }
    await sleep(restFactor * (performance.now() - startedMs));
    startedMs = performance.now();
  }
  return count === seal.records ? { root: Buffer.from(running.root()), hashes } : null;
}

/** Moves the sealed positions to the last of these rows. Returns false if one of them was sealed before. */
async function movePositions(tx: Kysely<Database>, groups: readonly UnsealedRows[]): Promise<boolean> {
  const [{ workspaceId }] = groups as [UnsealedRows];
  const ids = groups.map(({ processId }) => processId);
  const known = await tx
    .selectFrom('call_seal_position')
    .select(['process_id', 'sequence'])
    .where('workspace_id', '=', workspaceId)
    .where('process_id', 'in', ids)
    .execute();
  const firsts = new Map(groups.map(({ processId, first }) => [processId, first]));
  if (known.some(({ process_id: id, sequence }) => sequence >= (firsts.get(id) ?? 0))) return false;
  await sql`
    insert into call_seal_position (workspace_id, process_id, sequence)
    select ${workspaceId}, * from unnest(${ids}::uuid[], ${groups.map(({ last }) => last)}::bigint[])
    on conflict (workspace_id, process_id) do update set sequence = excluded.sequence`.execute(tx);
  return true;
}

/** Deletes the hashes of days that retention has deleted, and the positions of processes that the log has forgotten. */
async function forgetDeleted(db: Kysely<Database>): Promise<void> {
  const [oldest] = await listLogDays(db);
  if (oldest === undefined) return;
  const keptFromMs = Date.parse(oldest.day);
  await db.deleteFrom('call_seal').where('last_id', '<', lowestLogUuid(keptFromMs)).execute();
  // The ID of a process begins with the time of its start.
  await sql`
    delete from call_seal_position as position where process_id < ${lowestLogUuid(keptFromMs - dayMs)}
      and not exists (select from request_log_process as process where process.process_id = position.process_id)`.execute(
    db,
  );
}
