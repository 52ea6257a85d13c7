import { once } from 'node:events';
import path from 'node:path';
import { writeInputFile } from '#test/bench/input-file.ts';
import { startProcess } from '#test/bench/start-process.ts';

/** One measurement: live calls and ten-line batches of one workspace at the same time. */
export type VictimOrder = {
  /** The API's base URL, without `/v1`. */
  origin: string;
  key: string;
  perSecond: number;
  seconds: number;
  /** How long to wait for a live call, and for a batch. */
  patienceMs: number;
  batchPatienceMs: number;
  batchFile: string;
  batchBytes: number;
};

type Figures = {
  sent: number;
  failed: number;
  /** Each reason, and how often it occurred. */
  reasons: Record<string, number>;
  /** Of calls that were answered as expected or waited for in vain. Null without any. */
  p50Ms: number | null;
  p99Ms: number | null;
  worstMs: number | null;
};

export type VictimFigures = { live: Figures; batches: Figures };

export type Victim = {
  /** Measures for this many seconds, and until the last call and batch have ended. */
  measure(order: Omit<VictimOrder, 'batchPatienceMs' | 'batchFile' | 'batchBytes'>): Promise<VictimFigures>;
  stop(): Promise<void>;
};

const batchPatienceMs = 45_000;

/** Starts the process that plays the other workspace. */
export async function startVictim(folder: string): Promise<Victim> {
  const process = await startProcess({
    name: 'victim',
    script: 'test/abuse/rig/victim-process.ts',
    environment: {},
    logFile: path.join(folder, 'victim.log'),
  });
  const batchFile = path.join(folder, 'victim.jsonl');
  const batchBytes = await writeInputFile(batchFile, { lines: 10, lineBytes: 400 });
  const ended = once(process.child, 'exit').then(() => Promise.reject(new Error('the victim itself ended')));
  ended.catch(() => {}); // the caller that measures gets the error
  return {
    async measure(order) {
      process.child.send({ ...order, batchPatienceMs, batchFile, batchBytes });
      const figures = once(process.child, 'message').then(([figures]) => figures as VictimFigures);
      return await Promise.race([figures, ended]);
    },
    stop: () => process.stop(),
  };
}
