// The young generation of V8 grows to 64 MB by itself. A quarter of it costs no throughput (measured in interleaved
// rounds) and keeps a worker in the middle of a batch, and an API under full load, below 300 MB of resident memory.
const smallYoungGeneration = ['--max-semi-space-size=16'];

/**
 * Flags that Node is to be started with, by process; whoever starts one should give them (they are also allowed in
 * NODE_OPTIONS). What can be set later, the processes do by themselves (libs/kernel/heap-growth.ts).
 */
export const nodeOptions: Readonly<Record<'api' | 'worker' | 'simulator', readonly string[]>> = {
  api: smallYoungGeneration,
  worker: smallYoungGeneration,
  simulator: [],
};
