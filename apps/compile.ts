import { once } from 'node:events';
import { globSync } from 'node:fs';
import path from 'node:path';
import { Worker } from 'node:worker_threads';
import { limitHeapGrowth } from '#libs/kernel/heap-growth.ts';

// Loads what the API, the worker and their threads run, so that Node compiles it and keeps the result in the folder of
// NODE_COMPILE_CACHE. The image does this when it is built (Dockerfile).

const folder = path.resolve(import.meta.dirname, '..');
await import('./api/compose.ts');
await import('./worker/compose.ts');

// Node keeps what V8 compiled with other flags apart, and a process sets some before it starts its first thread.
limitHeapGrowth();
for (const file of globSync('{apps,libs}/**/*-worker.ts', { cwd: folder }))
  await once(new Worker(path.join(folder, file)), 'exit');
