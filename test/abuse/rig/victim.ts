import { once } from 'node:events';
import path from 'node:path';
import { writeInputFile } from '#test/bench/input-file.ts';
import { startProcess } from '#test/bench/start-process.ts';

/** One measurement: live calls and ten-line batches of one workspace, side by side. */
export type VictimOrder = {
  /** Of the API, without `/v1`. */
  origin: string;
  key: string;
  perSecond: number;
  seconds: number;
  /** How long a live call, and a batch, are waited for. */
  patienceMs: number;
  batchPatienceMs: number;
  batchFile: string;
  batchBytes: number;
};

type Figures = {
  sent: number;
  failed: number;
  /** Why, and how often. */
  reasons: Record<string, number>;
  /** Of what was answered as asked, and of what was waited for in vain. Null of none. */
  p50Ms: number | null;
  p99Ms: number | null;
  worstMs: number | null;
};

export type VictimFigures = { live: Figures; batches: Figures };

export type Victim = {
  /** Measures for so many seconds, and as long as the last call and batch take beyond. */
  measure(order: Omit<VictimOrder, 'batchPatienceMs' | 'batchFile' | 'batchBytes'>): Promise<VictimFigures>;
  stop(): Promise<void>;
};

const batchPatienceMs = 45_000;

/** The process that plays the other workspace, whichever that is. */
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
  ended.catch(() => {}); // told to who measures
  return {
    async measure(order) {
      process.child.send({ ...order, batchPatienceMs, batchFile, batchBytes });
      const told = once(process.child, 'message').then(([figures]) => figures as VictimFigures);
      return await Promise.race([told, ended]);
    },
    stop: () => process.stop(),
  };
}
