import { hash } from 'node:crypto';
import { expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { canonicalForm } from '#libs/event-log/canonical-form.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { batchCreated, batchValidated, commandOn } from './streams.ts';

const database = useTestDatabase();

async function storedOf(streamId: string) {
  return await database.db
    .selectFrom('event')
    .select(['canonical', 'sha256', 'metadata'])
    .where('stream_id', '=', streamId)
    .orderBy('stream_version')
    .execute();
}

test('every event is appended with its canonical form and the hash of that', async () => {
  const eventLog = createEventLog(database.db);
  const odd = { 'b\u20ac': '😀 "quoted" \\ \t', a: [1e21, 1e-7, -0, 2 ** 53], z: { 10: null, 9: true } };
  await eventLog.transact(commandOn('batch_canonical'), (unit) =>
    unit.append(batchModel, 'batch_canonical', [batchCreated({ gateway_options: odd }), batchValidated(3)]),
  );
  const stored = await storedOf('batch_canonical');
  const events = await readStream(database.db, 'batch_canonical');
  expect(events).toHaveLength(2);
  for (const [index, event] of events.entries()) {
    const { canonical, sha256, metadata } = stored[index] ?? {};
    // Read back through jsonb, an event still has the form that it was appended with.
    expect(canonicalForm(event, metadata as EventMetadata)).toBe(canonical);
    expect(sha256?.toString('hex')).toBe(hash('sha256', canonical ?? ''));
  }
  expect(JSON.parse(stored[0]?.canonical ?? '')).toMatchObject({
    form: 1,
    data: { gateway_options: { a: [1e21, 1e-7, 0, 2 ** 53] } },
  });
});
