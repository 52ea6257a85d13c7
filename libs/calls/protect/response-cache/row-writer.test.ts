import { expect, test } from 'vitest';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createRowWriter } from './row-writer.ts';

test('the number of small answers that wait for an unavailable database is limited', async () => {
  const away = Promise.withResolvers<void>();
  const stored = { find: () => Promise.resolve(null), keep: () => away.promise, sweep: () => Promise.resolve(0) };
  const writer = createRowWriter({ stored, logger: createLogger({ name: 'test', level: 'silent' }) });
  const head = {
    kind: 'json' as const,
    hasUsageChunk: false,
    contentType: 'application/json',
    model: null,
    finishReason: null,
    usage: null,
  };
  const entry = { head, body: Buffer.from('{}'), createdAtMs: 0, expiresAtMs: 1 };
  for (let n = 0; n < 40_000; n += 1) writer.add({ workspaceId: 'ws_1', key: Buffer.alloc(32), entry });
  expect(writer.stats().waitingRows).toBeLessThan(20_000);
  expect(writer.stats().droppedRows).toBeGreaterThan(20_000);
  away.resolve();
  await writer.flush();
  expect(writer.stats().waitingRows).toBe(0);
});
