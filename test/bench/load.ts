import type { BenchProcess } from './start-process.ts';

/** One round against one target. */
export type LoadOrder = {
  origin: string;
  path: string;
  headers: Record<string, string>;
  body: string;
  /** Connections; without a rate, also requests under way. */
  concurrency: number;
  /** null: as fast as it goes. */
  perSecond: number | null;
  warmUpSeconds: number;
  seconds: number;
};

export type LoadFigures = { perSecond: number; requests: number; failures: number; p50Ms: number; p99Ms: number };

/** Has the load generator run one round; `onWarm` is called between its warm-up and what is measured. */
export async function runLoad(generator: BenchProcess, order: LoadOrder, onWarm: () => void): Promise<LoadFigures> {
  generator.child.send(order);
  await nextMessage(generator);
  onWarm();
  const figures = (await nextMessage(generator)) as LoadFigures;
  if (figures.failures > 0) {
    throw new Error(`${figures.failures} of ${figures.requests + figures.failures} requests to ${order.origin} failed`);
  }
  return figures;
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
