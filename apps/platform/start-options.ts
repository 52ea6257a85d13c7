/** Flags and environment that Node is to be started with; whoever starts a process should give them. */
export type StartOptions = {
  readonly flags: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
};

// glibc keeps what the threads of Node gave back, 25 MB of it after an input file was checked, unless its threshold is
// set. Other C libraries do not know the variable.
const environment = { MALLOC_TRIM_THRESHOLD_: '131072' };

// The young generation of V8 grows to 64 MB by itself. A part of it costs no throughput (measured in interleaved rounds)
// and keeps a worker in the middle of a batch, and an API under full load, far below 300 MB of resident memory. That flag
// is also allowed in NODE_OPTIONS. What can be set later, each process does by itself (libs/kernel/heap-growth.ts).
export const startOptions: Readonly<Record<'api' | 'worker' | 'simulator', StartOptions>> = {
  // It also starts at its full size: between two bursts V8 shrinks it, and the next one pays for small collections again:
  // 3 to 14 % of a live request's processor time in interleaved rounds. NODE_OPTIONS does not take this flag.
  // At 24 a request costs the API about 5 % less than at 16, for 20 MB; more brings nothing that can be measured.
  api: { flags: ['--max-semi-space-size=24', '--min-semi-space-size=24'], environment },
  worker: { flags: ['--max-semi-space-size=8'], environment },
  // The simulator too: after a pause its calls cost about 5 % less, and it stays below 150 MB.
  simulator: { flags: ['--max-semi-space-size=16', '--min-semi-space-size=16'], environment },
};
