import { runLoad, type LoadFigures, type LoadOrder } from './load.ts';
import { promptOf } from './input-file.ts';
import { readUsage, resetPeak } from './process-usage.ts';
import type { BenchProcess } from './start-process.ts';
import { median } from './statistics.ts';

export type TargetFigures = {
  perSecond: number;
  /** Figures of each round when saturated, in order. */
  byRound: { perSecond: readonly number[]; p99Ms: readonly number[]; cpuMicroseconds: readonly number[] };
  p50Ms: number;
  p99Ms: number;
  /** At the moderate rate. */
  modestP50Ms: number;
  modestP99Ms: number;
  /** At the moderate rate, to the first content of the answer; 0 if that was not looked for. */
  contentP50Ms: number;
  /** Processor time of the gateway's process per request, in microseconds. */
  cpuMicroseconds: number;
  peakBytes: number;
};

export type LiveSize = { rounds: number; seconds: number; warmUpSeconds: number; modestSeconds: number };

/** Something that answers chat completions, and the process whose cost is measured. */
export type Target<Name extends string> = {
  name: Name;
  process: BenchProcess;
  order: Pick<LoadOrder, 'origin' | 'headers'>;
};

export const concurrency = 32;
export const modestPerSecond = 200;
const requestBytes = 1_024;

export type BenchRequest = Pick<LoadOrder, 'path' | 'body' | 'concurrency' | 'contentMark'> & {
  modestPerSecond: number;
};

/** Sends the same request to each target, in interleaved rounds. The figures are medians. */
export async function measureTargets<Name extends string>(
  targets: readonly Target<Name>[],
  generator: BenchProcess,
  size: LiveSize,
  onProgress: (text: string) => void,
  { modestPerSecond: modestRate, ...request }: BenchRequest = chatRequest(),
): Promise<Record<Name, TargetFigures>> {
  const perTarget = <Value>(make: () => Value): Record<Name, Value> =>
    Object.fromEntries(targets.map(({ name }) => [name, make()])) as Record<Name, Value>;
  const saturated = perTarget<LoadFigures[]>(() => []);
  const modest = perTarget<LoadFigures[]>(() => []);
  const cpu = perTarget<number[]>(() => []);
  for (const { process } of targets) await resetPeak(process.pid);
  for (let round = 0; round < size.rounds; round += 1) {
    for (const target of targets) {
      onProgress(`live round ${round + 1} of ${size.rounds}: ${target.name}`);
      // The first round of each target also compiles its code.
      const warmUpSeconds = round === 0 ? size.warmUpSeconds * 3 : size.warmUpSeconds;
      const order = { ...target.order, ...request, perSecond: null, warmUpSeconds, seconds: size.seconds };
      const { figures, atWarm } = await runLoad(generator, order, () => readUsage(target.process.pid));
      const after = await readUsage(target.process.pid);
      cpu[target.name].push(((after.cpuSeconds - atWarm.cpuSeconds) / figures.requests) * 1_000_000);
      saturated[target.name].push(figures);
    }
    for (const target of targets) {
      onProgress(`live round ${round + 1} of ${size.rounds}: ${target.name} at ${modestRate} requests/s`);
      const order = {
        ...target.order,
        ...request,
        perSecond: modestRate,
        warmUpSeconds: size.warmUpSeconds / 2,
        seconds: size.modestSeconds,
      };
      modest[target.name].push((await runLoad(generator, order, async () => {})).figures);
    }
  }
  const figures = {} as Record<Name, TargetFigures>;
  for (const { name, process } of targets) {
    figures[name] = {
      perSecond: median(saturated[name].map((round) => round.perSecond)),
      byRound: {
        perSecond: saturated[name].map((round) => round.perSecond),
        p99Ms: saturated[name].map((round) => round.p99Ms),
        cpuMicroseconds: cpu[name],
      },
      p50Ms: median(saturated[name].map((round) => round.p50Ms)),
      p99Ms: median(saturated[name].map((round) => round.p99Ms)),
      modestP50Ms: median(modest[name].map((round) => round.p50Ms)),
      modestP99Ms: median(modest[name].map((round) => round.p99Ms)),
      contentP50Ms: median(modest[name].map((round) => round.contentP50Ms)),
      cpuMicroseconds: median(cpu[name]),
      peakBytes: (await readUsage(process.pid)).residentPeakBytes,
    };
  }
  return figures;
}

/** The address and the headers for calls with the admin key to the simulator. */
export const throughSluice = ({ apiUrl, adminKey }: { apiUrl: string; adminKey: string }): Target<string>['order'] => ({
  origin: apiUrl,
  headers: {
    'content-type': 'application/json',
    authorization: `Bearer ${adminKey}`,
    'x-gateway-virtual-key': 'simulator',
  },
});

/** A chat completion of 1 KiB. */
export const chatOrder = ({ order }: Pick<Target<string>, 'order'>) => ({ ...order, ...chatRequest() });

/** A chat completion of this size. */
export function chatRequest(sizeBytes = requestBytes): BenchRequest {
  const frame = (content: string): string =>
    JSON.stringify({ model: 'sim-small', messages: [{ role: 'user', content }], temperature: 0, max_tokens: 256 });
  const body = frame(promptOf(1, sizeBytes - frame('').length));
  return { path: '/v1/chat/completions', body, concurrency, modestPerSecond };
}
