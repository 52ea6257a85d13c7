import type { BenchProcess } from './start-process.ts';

/** One round against one target. */
export type LoadOrder = {
  origin: string;
  path: string;
  headers: Record<string, string>;
  body: string;
  /** A text that shows the first content of an answer. */
  contentMark?: string;
  /** Connections; without a rate, also running requests. */
  concurrency: number;
  /** null: as fast as possible. */
  perSecond: number | null;
  warmUpSeconds: number;
  seconds: number;
};

export type LoadFigures = {
  perSecond: number;
  requests: number;
  failures: number;
  p50Ms: number;
  p99Ms: number;
  /** The median time to the first content; 0 if it was not looked for. */
  contentP50Ms: number;
};

/**
 * Lets the load generator run one round. `atWarm` is what `onWarm` returned between the warm-up and the measurement.
 */
export async function runLoad<Reading>(
  generator: BenchProcess,
  order: LoadOrder,
  onWarm: () => Promise<Reading>,
): Promise<{ figures: LoadFigures; atWarm: Reading }> {
  generator.child.send(order);
  await nextMessage(generator);
  // The round goes on meanwhile, so its figures are awaited before the result of `onWarm`.
  const [atWarm, message] = await Promise.all([onWarm(), nextMessage(generator)]);
  const figures = message as LoadFigures;
  if (figures.failures > 0) {
    throw new Error(`${figures.failures} of ${figures.requests + figures.failures} requests to ${order.origin} failed`);
  }
  return { figures, atWarm };
}

function nextMessage({ child, name }: BenchProcess): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const onExit = (): void => reject(new Error(`${name} ended in the middle of a round`));
    child.once('exit', onExit);
    child.once('message', (message) => {
      child.off('exit', onExit);
      resolve(message);
    });
  });
}
