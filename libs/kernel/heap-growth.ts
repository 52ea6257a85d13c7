import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

// V8 lets the old generation grow to four times what is alive in it before it looks for garbage. Requests and batch
// lines live just long enough to get there: a worker with 45 MB of live objects held 270 MB of heap.
const growthPercent = 60;

const transferredBytesMax = 4 * 1_048_576;

type Collect = (options?: { type: 'major' | 'minor' }) => void;

let collect: Collect | null = null;
let transferredBytes = 0;

/**
 * Keeps the heap of this process and its threads near what is alive in it. Unlike --max-old-space-size it is no limit:
 * a large answer still gets the memory that it needs. Collects once, which stops the process for some 30 ms.
 */
export function limitHeapGrowth(): void {
  // Read at every collection, so that it takes effect although the heap exists already.
  setFlagsFromString(`--heap-growing-percent=${growthPercent}`);
  // But the first comes at about 110 MB, whatever is alive: an API under full load, with 45 MB alive, held 350 MB of
  // memory then. So the first is now, when there is little to look through.
  setFlagsFromString('--expose-gc');
  collect = runInNewContext('gc') as Collect;
  setFlagsFromString('--no-expose-gc');
  collect();
}

/**
 * To be told of each `sizeBytes` of a file that goes through this process. What is read from a socket or a disk lies in
 * buffers outside of V8's heap, and whoever only passes them on makes hardly any objects for which V8 would look for
 * garbage: an upload of 200 MB left 55 MB of them, its check as a batch 30 MB. So every 4 MiB the young generation is
 * collected, which takes 1 to 2 ms.
 */
export function countTransferred(sizeBytes: number): void {
  transferredBytes += sizeBytes;
  if (transferredBytes < transferredBytesMax) return;
  transferredBytes = 0;
  collect?.({ type: 'minor' });
}

/** Frees what is dead in this thread's heap now: after work that left much of it, and before perhaps a long rest. */
export function collectGarbage(): void {
  collect?.({ type: 'major' });
}
