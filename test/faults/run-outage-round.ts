import { randomUUID } from 'node:crypto';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import { eventually } from '#test/eventually.ts';
import type { S3Server } from '#test/s3-server.ts';
import { checkBatch } from './check-batch.ts';
import { checkModels, checkResidue, collectEvidence } from './collect-evidence.ts';
import type { Fault } from './plan-round.ts';
import { startRig, type Rig } from './rig/start-rig.ts';
import { callsByLine } from './run-round.ts';
import { hasLostWorker, strike } from './strike.ts';
import { writeInput } from './write-input.ts';

/**
 * So many calls under way at once need more than the settings of the other rounds. While none of its calls is answered, a
 * batch gets an eighth of the free ones.
 */
export const outageEnvironment: Record<string, string> = {
  SLUICE_CHUNK_LINES: '40',
  SLUICE_CHUNKS_MAX: '10',
  SLUICE_CALLS_MAX: '5000',
};

const longOutages: readonly Fault[] = [
  { kind: 'hang_postgres', forMs: 20_000 },
  { kind: 'kill_postgres', downMs: 20_000 },
  // The last one, because the clock stays ahead.
  { kind: 'move_clock', byMs: 60_000 },
];

/** Runs 400 calls of 30 s through each outage, on a separate platform. Yields the violations of each round. */
export async function* runOutageRounds(s3: S3Server | null): AsyncGenerator<{ fault: Fault; violations: string[] }> {
  const rig = await startRig(outageEnvironment, s3);
  let keepFolder = true;
  try {
    for (const fault of longOutages) {
      const violations = await runOutageRound(rig, { lines: 400, callMs: 30_000 }, fault);
      yield { fault, violations };
      if (violations.length > 0) return;
    }
    keepFolder = false;
  } finally {
    await rig.stop({ keepFolder });
  }
}

/**
 * HOLD-5 where a call takes longer than an outage, and the outage longer than the silence after which a worker is given
 * up: strikes once all lines of a batch are being called, and checks that none was called twice. Returns what was
 * violated.
 */
export async function runOutageRound(
  rig: Rig,
  { lines, callMs }: { lines: number; callMs: number },
  fault: Fault,
): Promise<string[]> {
  const name = `outage-${randomUUID().slice(0, 8)}`;
  await rig.untilReady();
  await rig.resetCalls();
  const input = writeInput({ name, lines, model: `@simulator/sim-small+${callMs}ms` });
  const { id: fileId } = await rig.client.upload(`${name}.jsonl`, input, name);
  const { id } = await rig.client.createBatch(
    { input_file_id: fileId, endpoint: '/v1/chat/completions', completion_window: '24h' },
    { idempotencyKey: name, ownKey: false },
  );
  await eventually(
    () => callsByLine(rig, name),
    (calls) => calls.size === lines,
  );
  await strike(rig, { hurry: false }, fault, {}, () => {});
  const { request_counts: counts } = await rig.client.retrieveBatch(id);
  await eventually(
    () => rig.client.retrieveBatch(id),
    ({ status }) => isTerminal(status),
    { timeoutMs: 2 * callMs + 60_000 },
  );
  const violations = counts.completed < lines ? [] : ['the calls ended before the strike did'];
  violations.push(...(await checkResidue(rig, id)));
  const byLine = await callsByLine(rig, name);
  const calls = { byLine, retriesMax: 0, lostWorker: hasLostWorker([fault.kind]) };
  const clockSetBack = fault.kind === 'move_clock' && fault.byMs < 0;
  const evidence = { ...(await collectEvidence(rig, id)), input, seen: [], calls, clockSetBack };
  violations.push(...checkBatch(evidence), ...(await checkModels(rig)), ...rig.takeCrashes());
  const { completed } = evidence.batch.request_counts;
  if (completed !== lines) violations.push(`${completed} of ${lines} lines were completed`);
  return violations;
}
