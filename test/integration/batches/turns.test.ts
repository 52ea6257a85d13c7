import { sql } from 'kysely';
import { beforeEach, expect, test } from 'vitest';
import { batchModel, type BatchRow } from '#libs/batches/batch/batch-model.ts';
import {
  claimChunk as claimNext,
  snoozeChunk,
  releaseChunk,
  takeOverWork,
  wakeChunks,
  wakeDue,
  type ChunkRow,
} from '#libs/batches/chunks/chunk.ts';
import { appendAndFollow } from '#libs/batches/chunks/follow-status.ts';
import { resumeChunk } from '#libs/batches/chunks/resume-chunk.ts';
import { unsettledLines } from '#libs/batches/chunks/settled-lines.ts';
import {
  activate,
  deactivateIdle,
  orderAt,
  pauseTurn,
  setBatchWeight,
  type ClaimLimits,
} from '#libs/batches/chunks/turns.ts';
import { settleGroups, storeGroups, type CloseOutcome } from '#libs/batches/results/settle-groups.ts';
import { newId } from '#libs/kernel/ids.ts';
import { createRandom } from '#test/faults/random.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { createRunningBatch, follow, lineResult, noBlobs, readBatch, silent, useBatchEngine } from './running-batch.ts';

const database = useTestDatabase({ max: 12 });
const engine = useBatchEngine(database);
const nothing: ClaimLimits = { exceptWorkspaces: [], exceptBatches: [] };
const metadata = { actor: { type: 'system' as const, id: 'test' } };

beforeEach(async () => {
  await sql`truncate batch_turn, batch_share, batch_chunk, worker_process`.execute(database.db);
  await database.db.insertInto('worker_process').values({ id: 'process_1' }).execute();
});

type Claimed = ChunkRow & { workspace_id: string };

async function claim(limits = nothing, holder = 'process_1'): Promise<Claimed | null> {
  return (await claimNext(database.db, holder, limits)).claimed;
}

async function claimMany(count: number): Promise<Claimed[]> {
  const claimed: Claimed[] = [];
  for (let n = 0; n < count; n += 1) claimed.push((await claim()) as Claimed);
  return claimed;
}

const createBatch = (workspaceId: string, chunks: number, linesPerChunk = 1): Promise<string> =>
  createRunningBatch(database, engine, { lines: chunks * linesPerChunk, linesPerChunk, workspaceId });

const setTurn = (id: string, change: Partial<{ priority: number; order_at: Date }>) =>
  database.db.updateTable('batch_turn').set(change).where('batch_id', '=', id).execute();

test('workspaces take turns, however many chunks and batches each of them has', async () => {
  for (let n = 0; n < 5; n += 1) await createBatch('ws_large', 20);
  await createBatch('ws_small', 4);
  const owners = (await claimMany(8)).map((chunk) => chunk.workspace_id);
  expect(owners.filter((owner) => owner === 'ws_small')).toHaveLength(4);
});

test('a turn costs the lines of its chunk, divided by the weight of the workspace', async () => {
  await createBatch('ws_1', 40, 30);
  await createBatch('ws_2', 40, 10);
  await createBatch('ws_3', 40, 10);
  await database.db.updateTable('batch_share').set({ weight: 2 }).where('workspace_id', '=', 'ws_3').execute();
  const owners = Map.groupBy(await claimMany(40), (chunk) => chunk.workspace_id);
  const lines = (id: string): number => (owners.get(id) ?? []).reduce((sum, chunk) => sum + chunk.line_count, 0);
  expect(lines('ws_1') / lines('ws_2')).toBeCloseTo(1, 0);
  expect(lines('ws_3') / lines('ws_2')).toBeCloseTo(2, 0);
});

test('a workspace of weight 3 gets three times the claims, whether its weight was set before its first turn or later', async () => {
  const { db } = database;
  const setWeight = (workspaceId: string, weight: number) =>
    db.transaction().execute((tx) => setBatchWeight(tx, workspaceId, weight));
  await setWeight('ws_early', 3);
  for (const workspaceId of ['ws_early', 'ws_late', 'ws_plain']) await createBatch(workspaceId, 60);
  await setWeight('ws_late', 3);
  const claims = async (): Promise<number[]> => {
    const owners = (await claimMany(35)).map((chunk) => chunk.workspace_id);
    return ['ws_early', 'ws_late', 'ws_plain'].map((id) => owners.filter((owner) => owner === id).length);
  };
  expect(await claims()).toEqual([15, 15, 5]);
  const shares = await db
    .selectFrom('batch_share')
    .select(['lane', 'weight'])
    .where('workspace_id', '=', 'ws_late')
    .execute();
  expect(shares.map(({ lane, weight }) => `${lane} ${weight}`).toSorted()).toEqual([
    'large_files 3',
    'lines 3',
    'small_files 3',
  ]);
  await setWeight('ws_early', 1);
  await setWeight('ws_late', 1);
  const [early = 0, late = 0, plain = 0] = await claims();
  expect(Math.max(early, late, plain) - Math.min(early, late, plain)).toBeLessThanOrEqual(1);
});

test('a workspace that was alone owes nothing to one that joins, and one that was idle has saved nothing up', async () => {
  await createBatch('ws_early', 40);
  await claimMany(20);
  await createBatch('ws_late', 40);
  const owners = (await claimMany(10)).map((chunk) => chunk.workspace_id);
  expect(owners.filter((owner) => owner === 'ws_early')).toHaveLength(5);
});

test('within a workspace the priority decides, then the time by which a batch should be running', async () => {
  const [old, urgent, young] = [
    await createBatch('ws_1', 1),
    await createBatch('ws_1', 1),
    await createBatch('ws_1', 1),
  ];
  await setTurn(old, { order_at: new Date(1_000) });
  await setTurn(young, { order_at: new Date(2_000) });
  await setTurn(urgent, { priority: 1, order_at: new Date(3_000) });
  expect((await claimMany(3)).map((chunk) => chunk.batch_id)).toEqual([urgent, old, young]);
});

test('an immediate batch comes before one with a day, until half of the day has passed; a large one has less time', () => {
  const createdAt = new Date('2026-11-28T00:00:00Z');
  const of = (window: string, lines: number): string =>
    orderAt(
      { completion_window: window, created_at: createdAt, expires_at: new Date('2026-11-29T00:00:00Z') },
      lines,
    ).toISOString();
  expect(of('immediate', 1_000_000)).toBe('2026-11-28T00:00:00.000Z');
  expect(of('24h', 0)).toBe('2026-11-28T12:00:00.000Z');
  expect(of('24h', 36_000)).toBe('2026-11-28T11:00:00.000Z');
  expect(of('24h', 10_000_000)).toBe('2026-11-28T00:00:00.000Z');
});

test('what a process has enough of is left out, and a process that was given up gets nothing', async () => {
  const [first, second] = [await createBatch('ws_1', 2), await createBatch('ws_2', 2)];
  expect(await claim({ exceptWorkspaces: ['ws_1', 'ws_2'], exceptBatches: [] })).toBeNull();
  expect(await claim({ exceptWorkspaces: ['ws_1'], exceptBatches: [] })).toMatchObject({ batch_id: second });
  expect(await claim({ exceptWorkspaces: [], exceptBatches: [second] })).toMatchObject({ batch_id: first });
  expect(await claimNext(database.db, 'process_gone', nothing)).toMatchObject({ claimed: null, found: true });
});

test('a claim finds neither paused nor snoozed chunks, and both again when they can continue', async () => {
  const { db } = database;
  const id = await createBatch('ws_1', 2);
  const batch = await readBatch(database, id);
  await db.transaction().execute((tx) => pauseTurn(tx, batch, true));
  expect(await claim()).toBeNull();
  await deactivateIdle(db);
  await db.transaction().execute((tx) => pauseTurn(tx, batch, false));
  for (const chunk of await claimMany(2))
    expect(await snoozeChunk(db, { ...chunk, holder: 'process_1' }, 60_000)).toBe(true);
  await deactivateIdle(db);
  expect(await claim()).toBeNull();
  expect(await wakeDue(db, engine.queue)).toBe(false);
  await sql`update batch_chunk set due_at = now() where chunk = 0`.execute(db);
  expect(await wakeDue(db, engine.queue)).toBe(true);
  expect(await claim()).toMatchObject({ chunk: 0, snoozes: 1, claim_end: 'clean' });
  await wakeChunks(db, ['ws_2']);
  expect(await claim()).toBeNull();
  await wakeChunks(db, ['ws_1']);
  expect(await claim()).toMatchObject({ chunk: 1 });
});

test('a batch with a snoozed chunk goes behind those that could run by now', async () => {
  const { db } = database;
  const [throttled, other] = [await createBatch('ws_1', 1), await createBatch('ws_1', 1)];
  await setTurn(throttled, { order_at: new Date(1_000) });
  await setTurn(other, { order_at: new Date(2_000) });
  await snoozeChunk(db, { ...((await claim()) as Claimed), holder: 'process_1' }, 0);
  await wakeChunks(db, ['ws_1']);
  expect((await claimMany(2)).map((chunk) => chunk.batch_id)).toEqual([other, throttled]);
});

test('a workspace whose turn becomes ready while idle ones are taken out of the order stays in it', async () => {
  const { db } = database;
  const id = await createBatch('ws_1', 1);
  const { batch_id, chunk, claim: number } = (await claim()) as Claimed;
  await db.transaction().execute(async (tx) => {
    await activate(tx, 'lines', 'ws_1'); // it is active, so that only the lock protects it
    await deactivateIdle(db);
  });
  expect(await releaseChunk(db, { batch_id, chunk, claim: number, holder: 'process_1' }, 'clean')).toBe(true);
  expect(await claim()).toMatchObject({ batch_id: id });
});

/** What must hold whenever no transaction is open. */
async function problems(): Promise<string[]> {
  const { rows } = await sql<{ problem: string }>`
    select 'wrong count of ready chunks: ' || turn.batch_id || ' ' || turn.work || ' ' || turn.ready as problem
    from batch_turn as turn where turn.ready <> case when turn.work = 'lines'
      then (select count(*) from batch_chunk where batch_id = turn.batch_id and state = 'ready')
      when turn.work = 'close' then 0 else turn.ready end
    union all
    select 'not in the order: ' || workspace_id from batch_turn as turn where ready > 0 and not paused and not exists (
      select from batch_share where lane = turn.lane and workspace_id = turn.workspace_id and active)
    union all
    select 'held by no process: ' || batch_id from batch_chunk
    where state = 'held' and holder not in (select id from worker_process)
    union all
    select 'ready in a batch that starts no lines: ' || batch_id from batch_chunk join batch_turn using (batch_id)
    where work <> 'lines' and state in ('ready', 'waiting')
    union all
    select 'lines are in no chunk, or in two: ' || batch_id from (
      select batch_id, sum(line_count) as lines, count(*) from batch_chunk group by batch_id
    ) as sums join batch on batch.id = batch_id where lines <> batch.total
    union all
    select 'settled lines do not agree with the results: ' || batch.id from batch
    where completed + failed <> (select coalesce(sum(bit_count(settled)), 0) from batch_chunk where batch_id = batch.id)
      and batch.id in (select batch_id from batch_chunk)`.execute(database.db);
  return rows.map(({ problem }) => problem);
}

test(
  'no order of claims, ends, crashes, pauses and cancels loses a chunk or counts one twice',
  { timeout: 120_000 },
  async () => {
    const { db } = database;
    const choices = createRandom(Number(process.env['SEED'] ?? 7));
    const random = (): number => choices.next();
    const pick = <Item>(items: readonly Item[]): Item => choices.pick(items);
    const batches: string[] = [];
    for (let n = 0; n < 12; n += 1) batches.push(await createBatch(`ws_${n % 4}`, 60, 4));
    type Process = { id: string; held: Claimed[] };
    const processes: Process[] = [];
    const start = async (): Promise<void> => {
      const id = newId('process_');
      await db.insertInto('worker_process').values({ id }).execute();
      processes.push({ id, held: [] });
    };
    for (let n = 0; n < 4; n += 1) await start();
    const claimed = new Set<string>();
    const deps = { ...engine, ...follow(engine), logger: silent, blobs: noBlobs };
    /** Settles lines of chunks of different batches together: all lines without a result, or the first one. */
    const settle = async (processId: string, chunks: readonly Claimed[], isWhole: boolean): Promise<CloseOutcome[]> => {
      const groups = chunks.map((chunk) => {
        const open = unsettledLines(chunk).slice(0, isWhole ? undefined : 1);
        const results = open.map((line) => lineResult(chunk.batch_id, line, { chunk: chunk.chunk }));
        const batch = { id: chunk.batch_id, workspaceId: chunk.workspace_id };
        return { batch, results, claims: isWhole ? [{ ...chunk, holder: processId }] : [] };
      });
      const holder = { id: processId, lost: new AbortController().signal };
      const settled = await settleGroups(deps, await storeGroups(deps, groups), holder);
      return settled.flatMap(({ outcomes }) => outcomes);
    };
    const command = (
      id: string,
      work: (batch: BatchRow, unit: Parameters<Parameters<typeof engine.eventLog.transact>[1]>[0]) => Promise<unknown>,
    ) =>
      engine.eventLog.transact({ workspaceId: 'ws_0', streams: [id], metadata }, async (unit) => {
        await work((await unit.load(batchModel, id)) as BatchRow, unit);
      });

    /** One random step of a process. Errors of the database end the test. */
    async function step(process: Process): Promise<void> {
      const what = random();
      const chunk = process.held.length > 0 && what > 0.3 ? pick(process.held) : undefined;
      if (chunk === undefined) {
        const found = await claim(nothing, process.id);
        if (found === null) return;
        const key = `${found.batch_id}/${found.chunk}/${found.claim}`;
        if (claimed.has(key)) throw new Error(`claimed twice: ${key}`);
        claimed.add(key);
        process.held.push(found);
        return;
      }
      const own = { ...chunk, holder: process.id };
      const end = (): void => void process.held.splice(process.held.indexOf(chunk), 1);
      if (what < 0.4) {
        if (await releaseChunk(db, own, random() < 0.5 ? 'clean' : null)) end();
      } else if (what < 0.5) {
        if (await snoozeChunk(db, own, random() * 20)) end();
      } else if (what < 0.6 && chunk.claim > 1) {
        const resumed = await resumeChunk(engine.eventLog, await readBatch(database, chunk.batch_id), own);
        if (resumed.action === 'drop') end();
      } else {
        const others = process.held.filter((other) => other.batch_id !== chunk.batch_id);
        const chunks = [chunk, ...(others.length > 0 && random() < 0.5 ? [pick(others)] : [])];
        const outcomes = await settle(process.id, chunks, what >= 0.8);
        for (const [index, outcome] of outcomes.entries())
          if (outcome !== 'incomplete') process.held.splice(process.held.indexOf(chunks[index] as Claimed), 1);
      }
    }

    async function disturb(): Promise<void> {
      const what = random();
      const id = pick(batches);
      if (what < 0.3) await deactivateIdle(db);
      else if (what < 0.5) await wakeDue(db, engine.queue);
      else if (what < 0.7) {
        await command(id, async (batch, unit) => {
          if (batch.status !== 'in_progress') return;
          const type = batch.paused_at === null ? ('batch.paused' as const) : ('batch.resumed' as const);
          await pauseTurn(unit.tx, await unit.append(batchModel, id, [{ type, data: {} }]), type === 'batch.paused');
        });
      } else if (what < 0.75) {
        await command(id, async (batch, unit) => {
          if (batch.status === 'in_progress')
            await appendAndFollow(follow(engine), unit, batch, [{ type: 'batch.cancel_requested', data: {} }]);
        });
      } else if (what < 0.9) {
        const [dead] = processes.splice(Math.floor(random() * processes.length), 1);
        await start();
        await db.transaction().execute(async (tx) => {
          await tx
            .deleteFrom('worker_process')
            .where('id', '=', (dead as Process).id)
            .execute();
          await takeOverWork(tx, (dead as Process).id);
        });
      } else await wakeChunks(db, [`ws_${Math.floor(random() * 4)}`]);
    }

    const found: string[] = [];
    for (let round = 0; round < 200; round += 1) {
      await Promise.all([...processes.map(step), ...processes.map(step), disturb()]);
      if (round % 10 === 9) found.push(...(await problems()));
      if (found.length > 0) break;
    }
    expect(found).toEqual([]);
    // What is left can be run to its end.
    for (const id of batches)
      await command(id, async (batch, unit) => {
        if (batch.paused_at !== null)
          await pauseTurn(unit.tx, await unit.append(batchModel, id, [{ type: 'batch.resumed', data: {} }]), false);
      });
    for (const { id } of processes.splice(0)) {
      await db.deleteFrom('worker_process').where('id', '=', id).execute();
      await db.transaction().execute((tx) => takeOverWork(tx, id));
    }
    await wakeChunks(db, ['ws_0', 'ws_1', 'ws_2', 'ws_3']);
    await start();
    const [last] = processes as [Process];
    for (;;) {
      const found = await claim(nothing, last.id);
      if (found === null) break;
      await settle(last.id, [found], true);
    }
    expect(await problems()).toEqual([]);
    const unfinished: unknown[] = [];
    for (const id of batches) {
      const { status, finalizing_reason: reason, completed, total } = await readBatch(database, id);
      const isCancelled = status === 'cancelling' || reason === 'cancelled';
      if (!isCancelled && !(status === 'finalizing' && completed === total)) unfinished.push({ id, status, completed });
    }
    expect(unfinished).toEqual([]);
  },
);
