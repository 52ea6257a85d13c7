import { profileWhile, sumByPart, type Part } from './cpu-profile.ts';
import { measureBatch } from './batch-bench.ts';
import { startGenerator } from './live-bench.ts';
import { runLoad, type LoadOrder } from './load.ts';
import { countEvents, streamRequest } from './body-bench.ts';
import { chatOrder, throughSluice } from './measure-targets.ts';
import { readMainThreadSeconds, readUsage } from './process-usage.ts';
import type { Cleanup, Stack } from './stack.ts';
import { projectRoot, type BenchProcess } from './start-process.ts';

/** What one kind of unit costs a process. Microseconds per unit. */
export type ProfileFigures = {
  unit: string;
  units: number;
  /** The processor time of all threads. The profiler adds to it. */
  cpuUs: number;
  /** The main thread. */
  parts: { part: Part; us: number }[];
};

/** Profiles API and worker, which have an open inspector, with live calls, with streams, and with a batch. */
export async function measureProfile(
  stack: Stack,
  { seconds, lines }: { seconds: number; lines: number },
  cleanup: Cleanup,
  onProgress: (text: string) => void,
): Promise<ProfileFigures[]> {
  const generator = await startGenerator(stack, cleanup);
  const calls = chatOrder({ order: throughSluice(stack) });
  const profileLoad = async (unit: string, load: Omit<LoadOrder, 'perSecond' | 'seconds' | 'warmUpSeconds'>) => {
    onProgress(`profile: ${unit}`);
    const order = { ...load, perSecond: null, warmUpSeconds: 0 };
    await runLoad(generator, { ...order, seconds: 2 }, async () => {}); // compiles the code
    return await profileUnits(stack.api, async () => {
      const { requests } = (await runLoad(generator, { ...order, seconds }, async () => {})).figures;
      return requests;
    });
  };
  const stream = { ...calls, ...streamRequest() };
  const streamEvents = await countEvents(stream);
  const live = await profileLoad('calls', calls);
  const streams = await profileLoad('streams', stream);
  onProgress('profile: lines');
  const measure = (count: number) => measureBatch(stack, { lines: count, lineBytes: 400 }, () => {});
  await measure(2_000); // compiles the code
  const batch = await profileUnits(stack.worker, async () => (await measure(lines)).lines);
  return [
    { unit: 'a live call, in the API', ...live },
    { unit: `an event of a stream of ${streamEvents} events, in the API`, ...divide(streams, streamEvents) },
    { unit: 'a line of a batch, in the worker', ...batch },
  ];
}

type Units = Omit<ProfileFigures, 'unit'>;

/**
 * `work` returns the number of units. The profile counts time in which the thread waited for a core, too, so its sum is scaled to
 * the processor time of the thread.
 */
async function profileUnits({ pid, ...process }: BenchProcess, work: () => Promise<number>): Promise<Units> {
  const read = async () => ({ all: (await readUsage(pid)).cpuSeconds, main: await readMainThreadSeconds(pid) });
  const before = await read();
  const { profile, result: units } = await profileWhile(process, work);
  const after = await read();
  const sums = sumByPart(profile, projectRoot);
  const mainUs = (after.main - before.main) * 1_000_000;
  const scale = mainUs / sums.reduce((total, { us }) => total + us, 0);
  const parts = sums.map(({ part, us }) => ({ part, us: us * scale }));
  return divide({ units: 1, cpuUs: (after.all - before.all) * 1_000_000, parts }, units);
}

const divide = ({ units, cpuUs, parts }: Units, by: number): Units => ({
  units: units * by,
  cpuUs: cpuUs / by,
  parts: parts.map(({ part, us }) => ({ part, us: us / by })),
});
