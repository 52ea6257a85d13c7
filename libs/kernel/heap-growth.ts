import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

// V8 lets the old generation grow to four times its live objects before it collects garbage. Requests and batch lines live
// just long enough to be moved there: a worker with 45 MB of live objects held 270 MB of heap.
const growthPercent = 60;

/** V8's default is 3,000. */
const callsBeforeTurboFan = 800;

const transferredBytesMax = 16 * 1_048_576;

type Collect = (options: { type: 'major' | 'minor'; flavor?: 'last-resort' }) => void;

let collect: Collect | null = null;
let transferredBytes = 0;

/**
 * Limits the heap of this process and its threads to a size close to that of its live objects, and the memory that V8's
 * compilers leave. Unlike --max-old-space-size this is not a hard limit: a large answer still gets the memory it needs.
 * Call it when all modules are loaded. It collects, which pauses the process for about 100 ms.
 */
export function limitHeapGrowth(): void {
  // V8 reads this flag at every collection, so it takes effect although the heap already exists.
  setFlagsFromString(`--heap-growing-percent=${growthPercent}`);
  // By default V8 starts to collect the old generation whenever buffers have grown by 64 MB since the last collection,
  // and then works 5 to 10 ms for it at every further buffer. One answer of 60 MiB was enough for that. With this flag
  // buffers count as part of the heap, which can grow as above.
  setFlagsFromString('--external-memory-accounted-in-global-limit');
  // Maglev, the faster of V8's two optimizing compilers, fragments the memory of its process: under full load an API or a
  // worker holds 35 to 45 MB more with it. Without it, TurboFan has to compile functions sooner. In the first second of full
  // load after a start, an API makes a third fewer calls than with both; it then has its full speed, which took 3 s before.
  // Modules load faster with Maglev.
  setFlagsFromString('--no-maglev');
  setFlagsFromString(`--invocation-count-for-turbofan=${callsBeforeTurboFan}`);
  // V8's first collection comes at about 110 MB, however little is live: by then an API under full load, with 45 MB
  // live, had 350 MB of memory. The heap is therefore collected now, while there is little to scan. With this
  // flavor V8 also compacts the heap and drops the code that only ran while modules were loaded: an idle API takes
  // 155 MB of memory instead of 230.
  setFlagsFromString('--expose-gc');
  collect = runInNewContext('gc') as Collect;
  setFlagsFromString('--no-expose-gc');
  collect({ type: 'major', flavor: 'last-resort' });
}

/**
 * Stops the growth of the young generation, for a command that makes much garbage and has no one who waits for it. V8 would
 * let it grow to about 100 MB. Objects are moved to the old generation earlier, which takes a tenth more time.
 */
export function limitYoungGeneration(): void {
  // V8 reads this flag whenever the young generation could grow.
  setFlagsFromString('--semi-space-growth-factor=1');
  collectGarbage();
}

/** Returns a function that collects garbage whenever the bytes with which it was called reach a sum. For such commands, too. */
export function createGarbageCollector(bytesMax: number): (sizeBytes: number) => void {
  let sum = 0;
  return (sizeBytes) => {
    sum += sizeBytes;
    if (sum < bytesMax) return;
    sum = 0;
    collectGarbage();
  };
}

/**
 * Call this for every `sizeBytes` of a file that pass through this process. Data from a socket or a disk is in buffers
 * outside V8's heap. Code that only passes them on creates hardly any objects, so V8 has no reason to collect garbage:
 * an upload of 200 MB left 55 MB of dead buffers. The young generation is therefore collected every 16 MiB, which takes 1
 * to 2 ms. It is not collected more often, because this also completes a collection of the old generation that has begun,
 * at once instead of in steps: that took 60 to 90 ms, and with every 4 MiB it came twice a second when
 * bodies of 10 MiB arrived.
 */
export function countTransferred(sizeBytes: number): void {
  transferredBytes += sizeBytes;
  if (transferredBytes < transferredBytesMax) return;
  transferredBytes = 0;
  collect?.({ type: 'minor' });
}

/**
 * Collects garbage in this thread now. Call it after work that left much garbage if the thread could then be idle for long.
 */
export function collectGarbage(): void {
  collect?.({ type: 'major' });
}
