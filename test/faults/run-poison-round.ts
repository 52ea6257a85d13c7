import { randomUUID } from 'node:crypto';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { checkBatch } from './check-batch.ts';
import { checkModels, checkResidue, collectEvidence } from './collect-evidence.ts';
import type { Rig } from './rig/start-rig.ts';
import { killWorker } from './strike.ts';
import { writeInput } from './write-input.ts';

const lines = 12;
const deadly = 7;
/** How many claims a chunk of this size may take (libs/batches/chunks/resume-chunk.ts): two for each split, and five for the last line. */
const killsMax = 2 * Math.ceil(Math.log2(lines)) + 7;

/**
 * HOLD-9: a line that ends every worker that runs it (which is killed as soon as the provider sees the line) becomes an
 * error line `worker_crashed`, and every other line is answered. Returns descriptions of what was violated.
 */
export async function runPoisonRound(rig: Rig): Promise<{ violations: string[]; kills: number }> {
  const name = `poison-${randomUUID().slice(0, 8)}`;
  const [healthy, hanging] = ['@simulator/sim-small', '@simulator/sim-fault-hang'].map((model) =>
    writeInput({ name, lines, model }).toString('utf8').split('\n'),
  );
  const input = Buffer.from((healthy ?? []).with(deadly - 1, hanging?.[deadly - 1] ?? '').join('\n'));
  await rig.workers[1].rest();
  await rig.untilReady();
  await rig.resetCalls();
  const { id: fileId } = await rig.client.upload(`${name}.jsonl`, input, name);
  const { id } = await rig.client.createBatch(
    { input_file_id: fileId, endpoint: '/v1/chat/completions', completion_window: '24h' },
    { idempotencyKey: name, ownKey: false },
  );
  let kills = 0;
  while (kills <= killsMax) {
    const batch = await rig.client.retrieveBatch(id);
    if (isTerminal(batch.status)) break;
    const calls = (await rig.calls())[`${name}/${deadly}`] ?? 0;
    if (calls > kills) {
      kills += 1;
      await killWorker(rig, { worker: 0, downMs: 0 }, true);
    }
    await sleep(50);
  }
  if (kills > killsMax) return { violations: [`the line was still tried after ${kills} workers died of it`], kills };
  const violations = await checkResidue(rig, id);
  const evidence = { ...(await collectEvidence(rig, id)), input, seen: [] };
  violations.push(...checkBatch(evidence), ...(await checkModels(rig)), ...rig.takeCrashes());
  const { completed, failed } = evidence.batch.request_counts;
  if (completed !== lines - 1 || failed !== 1) violations.push(`${completed} completed and ${failed} failed`);
  if (!evidence.errors?.includes('"code":"worker_crashed"')) violations.push('no line is worker_crashed');
  return { violations, kills };
}
