import { sql, type Kysely, type Transaction } from 'kysely';
import type { BatchTurnTable, Database, Lane } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import { selectAlive } from '#libs/queue/process-lease.ts';
import type { BatchRow } from '../batch/batch-model.ts';

// Which batch comes next. A batch that has not ended has one row in `batch_turn`, which says what it needs: validation,
// calls of its lines, or its files. Work of one kind shares a lane. In a lane, workspaces take turns by virtual time
// (start-time fair queueing, Goyal, Vin and Cheng, 1996): each claim adds its lines, divided by the weight of the
// workspace, and the lowest sum comes next. A workspace that begins to have work joins at the virtual time of the
// others, so that none saves up turns or pays for having been alone. Within a workspace, the priority of a batch
// decides, and then the time by which it should be running.
//
// Every transaction locks in this order: the turn, its chunks, the share of the workspace.

/** Input files up to this size, and batches up to this many lines, take a moment. Larger ones take minutes. */
const smallFile = { bytes: 1_048_576, lines: 1_000 };

export const isSmallBatch = ({ total }: Pick<BatchRow, 'total'>): boolean => total <= smallFile.lines;
const lanes: readonly Lane[] = ['lines', 'small_files', 'large_files'];

const filesLane = (isSmall: boolean): Lane => (isSmall ? 'small_files' : 'large_files');

/**
 * When a batch should be running, by which the batches of a workspace are ordered. `immediate`: now. `24h`: half of its
 * window later, so that immediate batches come first, but earlier by a tenth of a second for each line, so that a stream
 * of immediate batches cannot make a large batch expire.
 *
 * @testOnly
 */
export function orderAt(
  batch: Pick<BatchRow, 'completion_window' | 'created_at' | 'expires_at'>,
  lineCount: number,
): Date {
  const { created_at: createdAt, expires_at: expiresAt } = batch;
  if (batch.completion_window === 'immediate') return createdAt;
  const windowMs = expiresAt.getTime() - createdAt.getTime();
  return new Date(createdAt.getTime() + Math.max(0, windowMs / 2 - lineCount * 100));
}

const priorityOf = ({ gateway_options: { priority } }: Pick<BatchRow, 'gateway_options'>): number =>
  typeof priority === 'number' ? priority : 0;

/** Creates the turn of a new batch, which a worker then validates. `inputBytes`: null if the file does not exist. */
export async function openTurn(tx: Transaction<Database>, batch: BatchRow, inputBytes: number | null): Promise<Lane> {
  const lane = filesLane(inputBytes === null || inputBytes <= smallFile.bytes);
  await tx
    .insertInto('batch_turn')
    .values({
      batch_id: batch.id,
      workspace_id: batch.workspace_id,
      work: 'validate',
      lane,
      priority: priorityOf(batch),
      order_at: orderAt(batch, 0),
      ready: 1,
    })
    .execute();
  await activate(tx, lane, batch.workspace_id);
  return lane;
}

/**
 * The lines of a batch come next, in `chunks` chunks. `holder`: the process that holds the first of them at once, unless
 * it was given up, or the workspace has other lines whose turn comes earlier. Returns how many chunks any process can claim.
 */
export async function turnToLines(
  tx: Transaction<Database>,
  batch: BatchRow,
  chunks: number,
  holder: string | null = null,
): Promise<number> {
  const { workspace_id: workspaceId } = batch;
  const change = { work: 'lines', lane: 'lines', ready: chunks, paused: batch.paused_at !== null } as const;
  const ready = await changeTurn(tx, batch, { ...change, order_at: orderAt(batch, batch.total) }, holder);
  if (ready > 0) await activate(tx, 'lines', workspaceId);
  return ready;
}

/** No further line of a batch is claimed. Its running chunks can end. */
export async function turnToClose(tx: Transaction<Database>, batchId: string): Promise<void> {
  await tx
    .updateTable('batch_turn')
    .set({ work: 'close', ready: 0 })
    .where('batch_id', '=', batchId)
    .where('work', '=', 'lines')
    .execute();
}

/**
 * The files of a batch come next. `holder`: the process that writes them at once if the batch is small, unless it was
 * given up; null: any process. Returns the lane if any process can claim it, which the caller then activates.
 */
export async function turnToFinalise(
  tx: Transaction<Database>,
  batch: BatchRow,
  holder: string | null,
): Promise<Lane | null> {
  const isSmall = isSmallBatch(batch);
  const lane = filesLane(isSmall);
  const ready = await changeTurn(tx, batch, { work: 'finalise', lane, ready: 1 }, isSmall ? holder : null);
  return ready === 0 ? null : lane;
}

/** Changes what comes next. A holder that was not given up takes one piece of it. Returns how much is ready for others. */
async function changeTurn(
  tx: Transaction<Database>,
  { id, workspace_id: workspaceId }: BatchRow,
  change: Pick<BatchTurnTable, 'work' | 'lane' | 'ready'> & { paused?: boolean; order_at?: Date },
  holder: string | null,
): Promise<number> {
  const { work, lane, ready, paused = false, order_at: orderedAt = sql.ref('order_at') } = change;
  // Lines of a workspace that has others in the order are claimed in that order, and charged to it.
  const isNext =
    work === 'lines'
      ? sql`not exists (select from batch_share where lane = ${lane} and workspace_id = ${workspaceId} and active)`
      : sql`true`;
  const { rows } = await sql<{ ready: number }>`
    with alive as materialized (${holder === null ? sql`select null::text as id where false` : selectAlive(holder)}),
      me as materialized (select id from alive where ${isNext})
    update batch_turn set work = ${work}, lane = ${lane}, ready = ${ready} - (select count(*)::int from me),
      holder = ${work === 'lines' ? null : sql`(select id from me)`}, failures = 0, due_at = null,
      paused = ${paused}, order_at = ${orderedAt}
    where batch_id = ${id} returning ready`.execute(tx);
  return rows[0]?.ready ?? ready;
}

/** A paused batch has no turns with its lines. */
export async function pauseTurn(
  tx: Transaction<Database>,
  { id, workspace_id: workspaceId }: BatchRow,
  paused: boolean,
): Promise<void> {
  await tx.updateTable('batch_turn').set({ paused }).where('batch_id', '=', id).where('work', '=', 'lines').execute();
  if (!paused) await activate(tx, 'lines', workspaceId);
}

/** The batch has ended. */
export async function endTurn(tx: Kysely<Database>, batchId: string): Promise<void> {
  await tx.deleteFrom('batch_turn').where('batch_id', '=', batchId).execute();
}

/**
 * Notes that a workspace can have ready turns in a lane. Takes a lock that others can share, and that `deactivateIdle`
 * respects until this transaction ends; an active workspace costs no write.
 */
export async function activate(tx: Transaction<Database>, lane: Lane, workspaceId: string): Promise<void> {
  // The virtual time of others is read as the system, which requests cannot see.
  await asSystem(() =>
    sql`
      with known as materialized (
        select active from batch_share where lane = ${lane} and workspace_id = ${workspaceId} for key share
      )
      insert into batch_share (lane, workspace_id, active, virtual_time)
      select ${lane}, ${workspaceId}, true, coalesce(
        (select min(virtual_time) from batch_share where lane = ${lane} and active),
        (select max(virtual_time) from batch_share where lane = ${lane}), 0)
      where not exists (select from known where active)
      on conflict (lane, workspace_id) do update
        set active = true, virtual_time = greatest(batch_share.virtual_time, excluded.virtual_time)
        where not batch_share.active`.execute(tx),
  );
}

/** Sets the weight of a workspace in all lanes, whether it has had turns or not. */
export async function setBatchWeight(tx: Transaction<Database>, workspaceId: string, weight: number): Promise<void> {
  // A key of the organisation changes other workspaces than its own.
  await asSystem(() =>
    sql`
      insert into batch_share (lane, workspace_id, weight)
      select lane, ${workspaceId}, ${weight} from unnest(${lanes}::text[]) as lane
      on conflict (lane, workspace_id) do update set weight = excluded.weight`.execute(tx),
  );
}

/** Takes workspaces without a ready turn out of the order, so that no claim visits them. */
export async function deactivateIdle(db: Kysely<Database>): Promise<void> {
  const hasTurn = sql`
    exists (select from batch_turn as turn
      where turn.lane = share.lane and turn.workspace_id = share.workspace_id and ready > 0 and not paused)`;
  await db.transaction().execute(async (tx) => {
    const { rows } = await sql<{ lane: Lane; workspace_id: string }>`
      select lane, workspace_id from batch_share as share where active and not ${hasTurn}
      for update skip locked`.execute(tx);
    if (rows.length === 0) return;
    // A second statement, because a turn can have become ready between the first one's snapshot and its locks.
    await sql`
      update batch_share as share set active = false
      from unnest(${rows.map(({ lane }) => lane)}::text[], ${rows.map((row) => row.workspace_id)}::text[])
        as idle (lane, workspace_id)
      where share.lane = idle.lane and share.workspace_id = idle.workspace_id and not ${hasTurn}`.execute(tx);
  });
}

/** What a process cannot claim at the moment, because it has enough of it. */
export type ClaimLimits = { exceptWorkspaces: readonly string[]; exceptBatches: readonly string[] };

/** A claimed validation or finalise. `failures`: how often it failed in a row. `weight`: that of its workspace. */
export type FileTurn = {
  batchId: string;
  workspaceId: string;
  work: 'validate' | 'finalise';
  failures: number;
  weight: number;
};

/** `found`: there was something to claim, although another process may have been faster. */
export type Claim<Claimed> = {
  claimed: Claimed | null;
  found: boolean;
  /** How much work of the same batch is ready now. */
  left: number;
  /** Whether other batches have work that is ready and that this process can take. */
  others: boolean;
  /** The weight of the workspace of `claimed`, and of all workspaces that have work. */
  weight: number;
  activeWeight: number;
};

/** Claims the next validation or finalise of a lane for a process, unless the process was given up. */
export async function claimFileTurn(
  db: Kysely<Database>,
  lane: Lane,
  holder: string,
  limits: ClaimLimits,
): Promise<Claim<FileTurn>> {
  const { rows } = await sql<FileTurn & Omit<Claim<never>, 'claimed'> & { isClaimed: boolean }>`
    select ${claimColumns}, 0 as left, (turn).batch_id is not null as "isClaimed", (turn).batch_id as "batchId",
      (turn).workspace_id as "workspaceId", (turn).work, (turn).failures
    from ${claimWork(lane, holder, limits)}`.execute(db);
  const [{ found, left, others, weight, activeWeight, isClaimed, ...turn }] = rows as [(typeof rows)[number]];
  return { claimed: isClaimed ? { ...turn, weight } : null, found, left, others, weight, activeWeight };
}

/** Claims the next work of a lane, as one row (migrations/0001_schema.sql). */
export const claimWork = (lane: Lane, holder: string, { exceptWorkspaces, exceptBatches }: ClaimLimits) =>
  sql`claim_work(${holder}, ${lane}, ${exceptWorkspaces}::text[], ${exceptBatches}::text[])`;

/** What that row says about the lane. */
export const claimColumns = sql`is_found as found, others, weight, active_weight as "activeWeight"`;

/** How long a validation or finalise that failed waits for its next try: one second, doubled up to ten. */
const retryDelaySeconds = (failures: number): number => Math.min(10, 2 ** Math.min(failures, 4));

/**
 * Gives up a turn that this process holds. After a failure it is ready again after a pause, otherwise at once. Has no
 * effect if the process does not hold it any more.
 */
export async function releaseTurn(
  db: Kysely<Database>,
  { batchId, failures }: Pick<FileTurn, 'batchId' | 'failures'>,
  holder: string,
  hasFailed: boolean,
): Promise<void> {
  const delay = `${hasFailed ? retryDelaySeconds(failures) : 0} s`;
  await sql`
    update batch_turn set holder = null, failures = failures + ${hasFailed ? 1 : 0},
      due_at = clock_timestamp() + ${delay}::interval
    where batch_id = ${batchId} and holder = ${holder}`.execute(db);
}
