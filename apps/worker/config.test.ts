import { expect, test } from 'vitest';
import { chunksPerBatchMax, connectionsMax, WorkerConfig } from './config.ts';

const parse = (more: Record<string, string>): WorkerConfig =>
  WorkerConfig.parse({ DATABASE_URL: 'postgres://localhost/sluice', SLUICE_MASTER_KEY: 'x'.repeat(44), ...more });

test.each([
  [{}, 8],
  [{ SLUICE_CALLS_MAX: '100' }, 8],
  [{ SLUICE_CALLS_MAX: '4100' }, 17],
  [{ SLUICE_CALLS_MAX: '4000', SLUICE_CHUNK_LINES: '1' }, 256],
  [{ SLUICE_CALLS_MAX: '4000', SLUICE_CHUNKS_MAX: '2' }, 2],
])('with %o a worker runs %i chunks of a batch, enough for all of its calls', (more, expected) => {
  expect(chunksPerBatchMax(parse(more))).toBe(expected);
});

test.each([
  [{}, 4_096],
  [{ SLUICE_CALLS_MAX: '10000' }, 20_000],
  [{ SLUICE_CONNECTIONS: '64', SLUICE_CALLS_MAX: '16' }, 64],
])('with %o a worker has %i connections, so many that its calls are never refused', (more, expected) => {
  expect(connectionsMax(parse(more))).toBe(expected);
});
