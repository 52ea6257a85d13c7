import { sleep } from '#libs/kernel/sleep.ts';
import { giveUp, giveUpSilent, readBeats } from './give-up.ts';
import type { Fault, RoundPlan } from './plan-round.ts';
import type { Rig } from './rig/start-rig.ts';

/** Longer than the silence after which a process is given up (11 s), so that another worker has its chunks by then. */
const zombieMs = 17_000;
const hurriedZombieMs = 7_000;
const sessionsIntervalMs = 200;

type Ids = { batchId: string; fileId: string };

/** The faults after which calls may be repeated: a worker ended, hung or was given up. */
const losesWorker: ReadonlySet<Fault['kind']> = new Set([
  'kill_worker',
  'stop_worker',
  'pause_worker',
  'kill_everything',
  'give_up_worker',
]);

export const hasLostWorker = (struck: readonly Fault['kind'][]): boolean =>
  struck.some((kind) => losesWorker.has(kind));

/** Carries out one fault. `ids` names what exists by then. Resolves when the fault itself is over. */
export async function strike(
  rig: Rig,
  plan: Pick<RoundPlan, 'hurry'>,
  fault: Fault,
  ids: Partial<Ids>,
  say: (text: string) => void,
): Promise<void> {
  switch (fault.kind) {
    case 'kill_worker':
      return await killWorker(rig, fault, plan.hurry);
    case 'stop_worker':
      return await rig.workers[fault.worker].terminate(fault.downMs);
    case 'pause_worker': {
      const worker = rig.workers[fault.worker];
      const pausedAt = performance.now();
      const before = await readBeats(rig);
      worker.pause();
      if (plan.hurry) await giveUpSilent(rig, before, 1);
      await sleep(Math.max(0, pausedAt + (plan.hurry ? hurriedZombieMs : zombieMs) - performance.now()));
      worker.resume();
      return say(`worker ${fault.worker} goes on`);
    }
    case 'give_up_worker': {
      const [id] = (await readBeats(rig)).keys();
      return await giveUp(rig, id === undefined ? [] : [id]);
    }
    case 'kill_api':
      return await rig.api.kill(fault.downMs);
    case 'kill_postgres':
      await rig.postgres.kill(fault.downMs);
      return say('postgres is back');
    case 'kill_everything': {
      const before = await readBeats(rig);
      await Promise.all([
        rig.postgres.kill(fault.downMs),
        rig.api.kill(0),
        ...rig.workers.map((worker) => worker.kill(0)),
      ]);
      say('postgres is back');
      if (plan.hurry) await giveUp(rig, [...before.keys()]);
      return;
    }
    case 'hang_postgres':
      await rig.postgres.hang(fault.forMs);
      return say('postgres goes on');
    case 'move_clock':
      return await rig.moveClock(fault.byMs);
    case 'end_sessions': {
      const until = performance.now() + fault.forMs;
      while (performance.now() < until) {
        await rig.postgres.endSessions();
        await sleep(sessionsIntervalMs);
      }
      return;
    }
    case 'lose_blobs':
      await rig.loseBlobs(fault.forMs);
      return say('the blobs are back');
    case 'cancel':
      if (ids.batchId !== undefined) say(`cancel answered ${await rig.client.cancelBatch(ids.batchId)}`);
      return;
    case 'delete_input':
      if (ids.fileId !== undefined) await rig.client.deleteFile(ids.fileId);
  }
}

/** SIGKILL for a worker. `hurry`: it is given up without the usual wait. */
export async function killWorker(
  rig: Rig,
  { worker, downMs }: { worker: 0 | 1; downMs: number },
  hurry: boolean,
): Promise<void> {
  const before = await readBeats(rig);
  await rig.workers[worker].kill(downMs);
  const other = rig.workers[1 - worker];
  if (hurry) await giveUpSilent(rig, before, other?.pid() === undefined ? 0 : 1);
}
