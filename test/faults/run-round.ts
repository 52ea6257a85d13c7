import { randomUUID } from 'node:crypto';
import type { OpenAiBatch } from '#libs/batches/batch/to-openai-batch.ts';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { checkBatch, type BatchEvidence } from './check-batch.ts';
import { checkModels, checkOnce, checkResidue, collectEvidence } from './collect-evidence.ts';
import { observeBatch, type Observer } from './observe-batch.ts';
import type { Fault, PlannedFault, RoundPlan } from './plan-round.ts';
import type { Rig } from './rig/start-rig.ts';
import { hasLostWorker, strike } from './strike.ts';
import { writeInput } from './write-input.ts';

export type RoundReport = {
  violations: string[];
  /** What happened, and when. */
  timeline: string[];
  /** The faults that were carried out. */
  struck: Fault['kind'][];
  status: string;
  durationMs: number;
  /** The longest time without progress. */
  stallMs: number;
};

/** Longer than any batch of a plan takes, including faults and waits for lost workers. */
const endMs = 150_000;
/** The goal is 30 s and a call. A busy machine gets twice that before it counts as a violation. */
const stallMaxMs = 60_000;

/** Runs one batch under the faults of a plan and checks everything about it. Leaves the rig running and intact. */
export async function runRound(rig: Rig, plan: RoundPlan): Promise<RoundReport> {
  const startedAt = performance.now();
  const timeline: string[] = [];
  const say = (text: string): void => {
    timeline.push(`${((performance.now() - startedAt) / 1_000).toFixed(2).padStart(7)} s  ${text}`);
  };
  const report: RoundReport = { violations: [], timeline, struck: [], status: 'unknown', durationMs: 0, stallMs: 0 };
  try {
    await prepare(rig, plan);
    await runBatch(rig, plan, report, say);
  } catch (error) {
    report.violations.push(error instanceof Error ? (error.stack ?? error.message) : String(error));
  }
  report.violations.push(...rig.takeCrashes());
  report.durationMs = performance.now() - startedAt;
  return report;
}

const expiryByRig = new WeakMap<Rig, number | null>();

async function prepare(rig: Rig, plan: RoundPlan): Promise<void> {
  if (plan.workers === 1) await rig.workers[1].rest();
  else rig.workers[1].wake();
  // Nothing expires for two minutes after the clock was set forward, except in a process that did not see that.
  if (plan.expiryMs !== null) for (const worker of rig.workers) await worker.terminate(0);
  await setExpiry(rig, plan.expiryMs);
  await rig.untilReady();
  await rig.resetCalls();
}

/** Sets the time in which batches expire, for this round and later ones. null: a day. */
export async function setExpiry(rig: Rig, expiryMs: number | null): Promise<void> {
  if ((expiryByRig.get(rig) ?? null) === expiryMs) return;
  rig.api.setEnvironment({ SLUICE_BATCH_EXPIRY: expiryMs === null ? '24h' : `${expiryMs}ms` });
  await rig.api.terminate(0);
  expiryByRig.set(rig, expiryMs);
}

async function runBatch(rig: Rig, plan: RoundPlan, report: RoundReport, say: (text: string) => void): Promise<void> {
  const name = `${plan.seed}-${randomUUID().slice(0, 8)}`;
  const filename = `${name}.jsonl`;
  const input = writeInput({ name, lines: plan.lines, model: plan.model });
  const ids: { batchId?: string; fileId?: string } = {};
  const moments = createMoments();
  const striking = plan.faults.map(async (fault) => {
    if (!(await moments.reached(fault))) return;
    await sleep(fault.at.delayMs);
    say(`${describeFault(fault)} strikes`);
    report.struck.push(fault.kind);
    await strike(rig, plan, fault, ids, say);
  });

  const uploading = rig.client.upload(filename, input, name);
  moments.pass('upload_sent');
  ids.fileId = (await uploading).id;
  moments.pass('uploaded');
  const creating = rig.client.createBatch(
    { input_file_id: ids.fileId, endpoint: '/v1/chat/completions', completion_window: '24h' },
    { idempotencyKey: name, ownKey: plan.target === 'own_key' },
  );
  moments.pass('create_sent');
  const { id: batchId } = await creating;
  ids.batchId = batchId;
  say(`batch ${batchId} created, ${plan.lines} lines`);
  const observer = observeBatch(rig.db, batchId);
  moments.follow(observer);
  moments.pass('created');

  const seen = await pollUntilEnd(rig, batchId);
  const end = seen.at(-1)?.status ?? 'unknown';
  report.status = end;
  say(`batch is ${end}`);
  await observer.stop();
  report.stallMs = observer.longestStallMs();
  await Promise.all(striking);
  await rig.untilReady();
  if (!isTerminal(end as OpenAiBatch['status'])) {
    report.violations.push(`the batch is still ${end} after ${endMs / 1_000} s`);
    return;
  }
  // First, because a remaining job may still be writing.
  report.violations.push(...(await checkResidue(rig, batchId)));
  const calls = await callsByLine(rig, name);
  const evidence: BatchEvidence = {
    ...(await collectEvidence(rig, batchId)),
    input,
    seen,
    calls: { byLine: calls, retriesMax: plan.retriesMax, lostWorker: hasLostWorker(report.struck) },
    clockSetBack: plan.faults.some((fault) => fault.kind === 'move_clock' && fault.byMs < 0),
  };
  report.violations.push(...checkBatch(evidence), ...checkCodes(evidence), ...checkEnd(plan, end));
  report.violations.push(...(await checkOnce(rig, filename, ids.fileId)), ...(await checkModels(rig)));
  if (report.stallMs > stallMaxMs + 2 * plan.latencyMs)
    report.violations.push(`no progress for ${Math.round(report.stallMs)} ms`);
}

/** The moments of a batch's life as promises: true when it came, false when the batch ended without it. */
function createMoments() {
  const passed = new Map<string, PromiseWithResolvers<void>>();
  const moment = (name: string): PromiseWithResolvers<void> => {
    const known = passed.get(name) ?? Promise.withResolvers<void>();
    passed.set(name, known);
    return known;
  };
  const observer = Promise.withResolvers<Observer>();
  return {
    pass: (name: 'upload_sent' | 'uploaded' | 'create_sent' | 'created') => moment(name).resolve(),
    follow: (followed: Observer) => observer.resolve(followed),
    async reached({ at: { after, share } }: PlannedFault): Promise<boolean> {
      switch (after) {
        case 'validated':
          return await (await observer.promise).until((now) => now.total > 0);
        case 'progress':
          return await (await observer.promise).until((now) => now.total > 0 && now.done >= share * now.total);
        case 'finalizing':
          return await (await observer.promise).until((now) => now.status === 'finalizing');
        case 'upload_sent':
        case 'uploaded':
        case 'create_sent':
        case 'created':
          await moment(after).promise;
          return true;
      }
    },
  };
}

const pollMs = 100;

async function pollUntilEnd(rig: Rig, batchId: string): Promise<OpenAiBatch[]> {
  const deadline = performance.now() + endMs;
  const seen: OpenAiBatch[] = [];
  for (;;) {
    const batch = await rig.client.retrieveBatch(batchId);
    seen.push(batch);
    if (isTerminal(batch.status) || performance.now() > deadline) return seen;
    await sleep(pollMs);
  }
}

/** How often the provider has been asked for each line of a round. */
export async function callsByLine(rig: Rig, name: string): Promise<Map<number, number>> {
  const byLine = new Map<number, number>();
  for (const [user, count] of Object.entries(await rig.calls())) {
    const [round, line] = user.split('/');
    if (round === name) byLine.set(Number(line), count);
  }
  return byLine;
}

/** No model in these rounds fails for good, so a line only fails because the batch ended before it. */
function checkCodes({ errors }: BatchEvidence): string[] {
  const allowed = /"code":"batch_(?:cancelled|expired)"/;
  const others = (errors?.toString('utf8') ?? '').split('\n').filter((line) => line !== '' && !allowed.test(line));
  return others.slice(0, 3).map((line) => `a line failed that had no reason to: ${line.slice(0, 400)}`);
}

/** An end that nothing in the plan explains is a violation as well. */
function checkEnd(plan: RoundPlan, end: string): string[] {
  const kinds = new Set(plan.faults.map(({ kind }) => kind));
  const explained: Record<string, boolean> = {
    completed: true,
    cancelled: kinds.has('cancel'),
    expired: plan.expiryMs !== null,
    // Deleted before it was validated.
    failed: kinds.has('delete_input'),
  };
  return explained[end] ? [] : [`nothing in the plan explains that the batch is ${end}`];
}

export function describeFault({ at, ...fault }: PlannedFault): string {
  const { kind, ...details } = fault;
  const more = Object.entries(details).map(([name, value]) => ` ${name}=${value}`);
  const moment = at.after === 'progress' ? `${Math.round(at.share * 100)} %` : at.after;
  return `${kind}${more.join('')} (${moment} + ${at.delayMs} ms)`;
}
