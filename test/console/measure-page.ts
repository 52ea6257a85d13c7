import path from 'node:path';
import type { Page } from 'playwright-core';

type LongTasks = { count: number; sumMs: number; longestMs: number };
type Phase = LongTasks & { name: string; tookMs: number; heapBytes: number; nodes: number };

/** What a page cost the browser, by phase, and how often what it shows has moved. */
export type PageMeasure = {
  phases: Phase[];
  /** How often the progress, the lines a second and the time that is left had another value. */
  progress: number;
  paces: number;
  timesLeft: number;
  /** After a garbage collection at the end. */
  heapBytes: number;
};

type Watched = { tasks: number[]; progress: string[]; paces: string[]; timesLeft: string[] };

/**
 * Measures the pages that are opened after this: long tasks (over 50 ms), heap and elements, and what the page of a
 * batch shows. `next` ends a phase and names it.
 */
export async function measurePage(
  page: Page,
): Promise<{ next: (name: string) => Promise<void>; end: () => Promise<PageMeasure> }> {
  await page.addInitScript({ path: path.join(import.meta.dirname, 'watch-in-page.js') });
  const devtools = await page.context().newCDPSession(page);
  await devtools.send('Performance.enable');
  const metrics = async (): Promise<Map<string, number>> => {
    const { metrics: all } = await devtools.send('Performance.getMetrics');
    return new Map(all.map(({ name, value }) => [name, value]));
  };
  const phases: Phase[] = [];
  let startedAt = performance.now();
  let tasksSeen = 0;
  const watched = (): Promise<Watched> => page.evaluate(() => (globalThis as unknown as { watched: Watched }).watched);

  return {
    async next(name) {
      const { tasks } = await watched();
      const own = tasks.slice(tasksSeen);
      tasksSeen = tasks.length;
      const now = await metrics();
      phases.push({
        name,
        tookMs: performance.now() - startedAt,
        count: own.length,
        sumMs: own.reduce((sum, ms) => sum + ms, 0),
        longestMs: Math.max(0, ...own),
        heapBytes: now.get('JSHeapUsedSize') ?? 0,
        nodes: now.get('Nodes') ?? 0,
      });
      startedAt = performance.now();
    },
    async end() {
      const { progress, paces, timesLeft } = await watched();
      await devtools.send('HeapProfiler.collectGarbage');
      const heapBytes = (await metrics()).get('JSHeapUsedSize') ?? 0;
      return {
        phases,
        heapBytes,
        progress: progress.length,
        paces: new Set(paces).size,
        timesLeft: new Set(timesLeft).size,
      };
    },
  };
}

const mebibytes = (bytes: number): string => `${(bytes / 1_048_576).toFixed(1)} MiB`;

/** The phases as a table of text. */
export function describePage({ phases, heapBytes }: PageMeasure): string {
  const rows = phases.map(({ name, tookMs, count, sumMs, longestMs, heapBytes: heap, nodes }) =>
    [
      name.padEnd(58),
      `${(tookMs / 1_000).toFixed(1)} s`.padStart(8),
      `${count} long tasks, ${Math.round(sumMs)} ms, longest ${Math.round(longestMs)} ms`.padEnd(44),
      mebibytes(heap).padStart(10),
      `${nodes} nodes`,
    ].join('  '),
  );
  return [...rows, `heap after a collection: ${mebibytes(heapBytes)}`].join('\n');
}
