import { setTimeout as wait } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { BudgetWaitError, type AdmissionRequest, type Spent } from '#libs/calls/admission.ts';
import { batchModel, type BatchRow } from '#libs/batches/batch/batch-model.ts';
import { decideBatch, type BatchCommand } from '#libs/batches/batch/batch.ts';
import { createCostBounds } from '#libs/batches/batch/cost-bound.ts';
import { appendAndFollow } from '#libs/batches/chunks/follow-status.ts';
import { createBatches } from '#libs/batches/batch/batches.ts';
import { findBatchWaits } from '#libs/batches/look/find-batch-waits.ts';
import { wholeAmount } from '#libs/kernel/amount.ts';
import { createCounterStore, readCounters } from '#libs/limits/counter-store.ts';
import { Limits } from '#libs/limits/limits.ts';
import { createLimitAdmission } from '#libs/policies/limit-admission.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  claimChunk,
  createRunningBatch,
  follow,
  lineResult,
  openSettler,
  readBatch,
  readEvents,
  silent,
  useBatchEngine,
} from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);
const metadata = { actor: { type: 'system' as const, id: 'test' } };

async function settle(id: string, from: number, count: number, succeeded: boolean): Promise<void> {
  const settler = openSettler(engine, id);
  for (let line = from; line < from + count; line += 1)
    settler.add(lineResult(id, line, { status: succeeded ? 200 : 400 }));
  await settler.flush();
}

async function control(id: string, command: Extract<BatchCommand, { type: 'pause' | 'resume' }>): Promise<BatchRow> {
  const batches = createBatches({
    db: database.db,
    eventLog: engine.eventLog,
    ...follow(engine),
    expiresAfterMs: 1,
    limits: { openBatchesMax: 1, queuedLinesMax: 1 },
  });
  return await batches.control(command, { workspaceId: 'ws_1', id }, metadata);
}

test('a batch whose error rate is too high is paused with its reason, and resumes with a higher rate', async () => {
  const gatewayOptions = { max_error_rate: 0.5, max_error_rate_after: 4 };
  const id = await createRunningBatch(database, engine, { lines: 12, linesPerChunk: 6, gatewayOptions });
  await settle(id, 1, 3, false);
  expect((await readBatch(database, id)).paused_at).toBeNull(); // too few results
  await settle(id, 4, 1, true);
  const paused = await readBatch(database, id);
  expect(paused).toMatchObject({ status: 'in_progress', bound_reached: 'max_error_rate', paused_at: expect.any(Date) });
  expect(await findBatchWaits(database.db, paused)).toMatchObject([
    { reason: 'paused', message: expect.stringContaining('it reached its max_error_rate of 0.5') },
  ]);
  await expect(claimChunk(database, id, 1)).rejects.toThrow('cannot be claimed');
  // Running calls end, and do not pause it again.
  await settle(id, 5, 1, false);
  expect((await readEvents(database, id)).filter(({ type }) => type === 'batch.paused')).toHaveLength(1);

  await expect(control(id, { type: 'resume' })).rejects.toMatchObject({ code: 'bound_reached' });
  await expect(control(id, { type: 'resume', bounds: { max_error_rate: 0.5 } })).rejects.toMatchObject({
    message:
      "The batch has reached its max_error_rate of 0.5. To resume it, send a higher 'max_error_rate', or null to remove it.",
  });
  expect(await control(id, { type: 'resume', bounds: { max_error_rate: 0.9 } })).toMatchObject({
    paused_at: null,
    bound_reached: null,
    gateway_options: { max_error_rate: 0.9, max_error_rate_after: 4 },
  });
  await claimChunk(database, id, 1);
});

test('a bound cancels the batch if that was requested, and keeps what it has', async () => {
  const gatewayOptions = { max_error_rate: 0, max_error_rate_after: 1, on_bound: 'cancel' };
  const id = await createRunningBatch(database, engine, { lines: 4, linesPerChunk: 2, gatewayOptions });
  await settle(id, 1, 1, false);
  expect(await readBatch(database, id)).toMatchObject({
    status: 'cancelling',
    bound_reached: 'max_error_rate',
    failed: 1,
  });
});

/** The calls of one worker: each is estimated at 10 cents and costs 7. */
function startWorker() {
  const limits = new Limits({
    store: createCounterStore({ db: database.db, countersPerLimitMax: 10 }),
    clock: { now: Date.now },
    logger: silent,
    onAlertDue: () => {},
  });
  limits.start();
  const admission = createLimitAdmission({
    limits,
    rulesOf: () => undefined,
    amounts: {
      estimate: () => wholeAmount(10),
      used: () => ({ amount: wholeAmount(7), unconfirmed: 0n }),
      learn: (_request, spent) => spent,
    },
    clock: { now: Date.now },
    unpriced: 'refuse',
  });
  const boundOf = createCostBounds({ eventLog: engine.eventLog, ...follow(engine), logger: silent });
  const spent: Spent = { usage: null, attempts: [], status: 200, model: 'm' };
  const refused: string[] = [];
  let calls = 0;
  return {
    refused,
    calls: () => calls,
    stop: () => limits.stop(),
    /** Calls lines, one after the other. */
    async callLines(batch: BatchRow, paused: AbortSignal): Promise<void> {
      const request: AdmissionRequest = {
        workspaceId: 'ws_1',
        keyId: null,
        target: { provider: 'p', label: 'p' },
        model: 'm',
        operation: 'chat',
        work: 'call',
        metadata: null,
        config: null,
        prompt: null,
        waitsForBudget: false,
        bound: boundOf(batch),
        estimate: () => ({ inputTokens: 1, outputTokensMax: 1, choices: 1 }),
        otherModels: () => ({ names: [], chooses: null }),
      };
      while (!paused.aborted) {
        try {
          const reservation = await admission.admit(request);
          calls += 1;
          await wait(5);
          reservation?.settle(spent);
        } catch (error) {
          if (error instanceof BudgetWaitError) refused.push(error.message);
          // A line waits for a database that does not answer.
          else expect(error).toMatchObject({ code: 'limits_unavailable' });
          await wait(20);
        }
      }
    },
  };
}

/** Aborts when a batch is paused. */
function watchPause(id: string): AbortSignal {
  const paused = new AbortController();
  void eventually(
    () => readBatch(database, id),
    (batch) => batch.paused_at !== null,
    { timeoutMs: 50_000 },
  ).finally(() => paused.abort());
  return paused.signal;
}

test('the calls of several workers never exceed max_cost, and then the batch is paused until it is raised', async () => {
  const id = await createRunningBatch(database, engine, { lines: 1_000, gatewayOptions: { max_cost: '2.5' } });
  const workers = [startWorker(), startWorker(), startWorker()];
  const run = async (): Promise<number> => {
    const batch = await readBatch(database, id);
    const paused = watchPause(id);
    await Promise.all(workers.flatMap((worker) => Array.from({ length: 4 }, () => worker.callLines(batch, paused))));
    return workers.reduce((sum, worker) => sum + worker.calls() * 7, 0);
  };
  const cents = await run();
  expect(cents).toBeLessThanOrEqual(250);
  const paused = await readBatch(database, id);
  expect(paused).toMatchObject({ status: 'in_progress', bound_reached: 'max_cost' });
  expect(workers.flatMap(({ refused }) => refused)).toContainEqual(
    expect.stringMatching(
      /^The batch has a max_cost of \$2\.5, of which \$2\.\d+ are used, and the next call can cost up to \$0\.1\.$/,
    ),
  );
  expect((await readEvents(database, id)).filter(({ type }) => type === 'batch.paused')).toHaveLength(1);

  await expect(control(id, { type: 'resume', bounds: { max_cost: '2.50' } })).rejects.toMatchObject({
    code: 'bound_reached',
    param: 'max_cost',
  });
  await control(id, { type: 'resume', bounds: { max_cost: '3' } });
  const more = await run();
  expect(more).toBeGreaterThan(cents);
  expect(more).toBeLessThanOrEqual(300);
  await Promise.all(workers.map((worker) => worker.stop()));
  const [counter] = await readCounters(database.db, id);
  // What is left does not cover a call.
  expect(Number(counter?.used)).toBeGreaterThan(290);
  // Its row is swept after the batch.
  expect(counter?.period_end?.getTime()).toBeGreaterThan(paused.expires_at.getTime());
}, 60_000);

test('a bound that was raised in the meantime stops nothing, and one that was removed admits all calls', async () => {
  const id = await createRunningBatch(database, engine, { lines: 10, gatewayOptions: { max_cost: '0.05' } });
  const before = await readBatch(database, id);
  const worker = startWorker();
  // The lines of this worker still have the old bound, which does not cover one call.
  await control(id, { type: 'pause' });
  await control(id, { type: 'resume', bounds: { max_cost: null } });
  const calling = worker.callLines(before, watchPause(id));
  await eventually(
    () => Promise.resolve(worker.calls()),
    (calls) => calls > 0,
  );
  expect(worker.refused).toHaveLength(1);
  await control(id, { type: 'pause' });
  await calling;
  await worker.stop();
  expect((await readBatch(database, id)).bound_reached).toBeNull();
});

test('a decision about a bound is made once', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2, gatewayOptions: { max_cost: '1' } });
  const decide = async (): Promise<number> =>
    await engine.eventLog.transact({ workspaceId: 'ws_1', streams: [id], metadata }, async (unit) => {
      const batch = (await unit.load(batchModel, id)) as BatchRow;
      const events = decideBatch(batch, { type: 'reach_max_cost', max: '1' }, unit.now);
      await appendAndFollow(follow(engine), unit, batch, events);
      return events.length;
    });
  expect([await decide(), await decide()]).toEqual([1, 0]);
});
