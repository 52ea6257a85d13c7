import path from 'node:path';

/** Flags and environment variables that Node should be started with. */
export type StartOptions = {
  readonly flags: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
};

const environment = {
  // glibc retains memory that Node's threads have freed, 25 MB of it after an input file was validated, unless its
  // threshold is set. Other C libraries ignore the variable.
  MALLOC_TRIM_THRESHOLD_: '131072',
  // Compiled modules, each with a checksum of its source. A process starts in half the time, and so do its threads.
  NODE_COMPILE_CACHE: path.resolve(import.meta.dirname, '../../node_modules/.cache/node-compile'),
};

// By default V8's young generation grows to 64 MB. Limiting it costs no throughput (measured in interleaved rounds) and
// keeps a busy worker and a fully loaded API far below 300 MB of resident memory. That flag is also allowed in
// NODE_OPTIONS. Options that can be set later are set by each process itself (libs/kernel/heap-growth.ts).
export const startOptions: Readonly<Record<'api' | 'worker' | 'simulator', StartOptions>> = {
  // It also starts at its full size. V8 shrinks it between two bursts, and the next burst pays for small collections again:
  // 3 to 14 % of a live request's processor time in interleaved rounds. NODE_OPTIONS does not take this flag. At 24 a request
  // costs the API about 5 % less than at 16, for 20 MB; a larger value has no measurable effect.
  // V8 also learns from the slow first calls to create some objects in the old generation, where each keeps others alive
  // until that is collected. Without it a live call costs about 6 % less, and a batch line 10 to 15 % less.
  api: {
    flags: ['--max-semi-space-size=24', '--min-semi-space-size=24', '--no-allocation-site-pretenuring'],
    environment,
  },
  worker: { flags: ['--max-semi-space-size=8', '--no-allocation-site-pretenuring'], environment },
  // The simulator, too, starts with its full young generation: after a pause its calls cost about 5 % less, and it stays below 150 MB.
  simulator: { flags: ['--max-semi-space-size=16', '--min-semi-space-size=16'], environment },
};
