import path from 'node:path';
import { defineConfig } from 'vitest/config';

// Every test file and every process that a test starts (test/compile-cache.ts) compiles the same modules. Compiled once
// and kept, they let an API start in two thirds of the time. Node itself checks each against its source.
process.env['NODE_COMPILE_CACHE'] ??= path.join(import.meta.dirname, 'node_modules/.cache/node-compile');

// Thousands of tests start processes, kill them and wait for clocks on machines that others load. One that fails is run once
// more, and the report marks it (`retry x1`), so that a rare race is seen without making the whole run worthless.
const retry = 1;

// `unit` needs nothing; `integration` needs a Postgres (DATABASE_URL, embedded, or Testcontainers: test/postgres.ts).
export default defineConfig({
  test: {
    // Two also on two cores, where vitest would take one: these tests wait more than they compute.
    maxWorkers: 2,
    projects: [
      {
        test: {
          name: 'unit',
          // Files share what they import, which was half of the time that they took. No test changes a module for itself.
          isolate: false,
          retry,
          testTimeout: 60_000,
          include: ['{apps,libs}/**/*.test.ts', 'test/*.test.ts', 'test/{conformance,bench,abuse,fuzz}/*.test.ts'],
        },
      },
      {
        test: {
          name: 'integration',
          include: ['test/{integration,api,attacks,faults,console}/**/*.test.ts'],
          globalSetup: ['test/postgres-server.ts'],
          retry,
          testTimeout: 60_000,
          hookTimeout: 120_000,
        },
      },
    ],
  },
});
