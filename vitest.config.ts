import path from 'node:path';
import { defineConfig } from 'vitest/config';

// Every test file and every process that a test starts (test/compile-cache.ts) compiles the same modules. Compiled once
// and kept, they let an API start in two thirds of the time. Node itself checks each against its source.
process.env['NODE_COMPILE_CACHE'] ??= path.join(import.meta.dirname, 'node_modules/.cache/node-compile');

// Thousands of tests start processes, kill them and wait for clocks on machines that others load. One that fails is run once
// more, and the report marks it (`retry x1`), so that a rare race is seen without making the whole run worthless.
const retry = 1;

/** Files that replace a module, which the other files of the process would get too, or that measure the memory of their process. */
const isolated = [
  'apps/cli/batches/follow-results.test.ts',
  'test/api/new-provider.test.ts',
  'test/integration/request-log/made-up-column.test.ts',
  'libs/kernel/json/measure-json.test.ts',
];

/** What the tests have in common that need a Postgres: DATABASE_URL, embedded, or Testcontainers (test/postgres.ts). */
const withPostgres = { globalSetup: ['test/postgres-server.ts'], retry, testTimeout: 60_000, hookTimeout: 120_000 };

// Files share what they import, which was half of the time of unit tests and 1.5 s of each other file. No test
// changes a module for itself, except those of `isolated`.
export default defineConfig({
  test: {
    // Two also on two cores, where vitest would take one: these tests wait more than they compute. Three take a sixth
    // less time, but two to three tests then need a second try.
    maxWorkers: 2,
    projects: [
      {
        test: {
          name: 'unit',
          isolate: false,
          retry,
          testTimeout: 60_000,
          include: ['{apps,libs}/**/*.test.ts', 'test/*.test.ts', 'test/{conformance,bench,abuse,fuzz}/*.test.ts'],
          exclude: isolated,
        },
      },
      // In two projects, because what a file leaves in memory stays until the last file of its project.
      {
        test: {
          ...withPostgres,
          name: 'api',
          isolate: false,
          include: ['test/api/*.test.ts'],
          exclude: isolated,
        },
      },
      {
        test: {
          ...withPostgres,
          name: 'integration',
          isolate: false,
          include: ['test/{integration,attacks}/**/*.test.ts'],
          exclude: isolated,
        },
      },
      {
        test: { ...withPostgres, name: 'isolated', include: ['test/faults/*.test.ts', ...isolated] },
      },
      {
        test: {
          ...withPostgres,
          name: 'console',
          globalSetup: [...withPostgres.globalSetup, 'test/console/built-console.ts'],
          include: ['test/console/*.test.ts'],
        },
      },
    ],
  },
});
