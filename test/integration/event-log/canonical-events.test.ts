import { hash } from 'node:crypto';
import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import { saltedSha256, toEnvelope } from '#test/event-envelope.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { batchCreated, batchValidated, commandOn } from './streams.ts';

const database = useTestDatabase();

test('every event is appended as canonical JSON, with salted digests and a hash that the event can be checked with', async () => {
  const eventLog = createEventLog(database.db);
  const odd = { 'b\u20ac': '😀 "quoted" \\ \t', a: [1e21, 1e-7, -0, 2 ** 53], z: { 10: null, 9: true } };
  await eventLog.transact({ ...commandOn('batch_canonical'), workspaceId: 'ws_"\u001f\b\u007f€' }, (unit) =>
    unit.append(batchModel, 'batch_canonical', [batchCreated({ gateway_options: odd }), batchValidated(3)]),
  );
  const { rows } = await sql<{
    data: string;
    metadata: string;
    dataSalt: string;
    metadataSalt: string;
    sha256: string;
  }>`
    select data::text, metadata::text, encode(data_salt, 'hex') as "dataSalt",
      encode(metadata_salt, 'hex') as "metadataSalt", encode(sha256, 'hex') as sha256
    from event where stream_id = 'batch_canonical' order by stream_version`.execute(database.db);
  const events = await readStream(database.db, 'batch_canonical');
  expect(events).toHaveLength(2);
  for (const [index, event] of events.entries()) {
    const stored = rows[index];
    if (!stored) throw new Error('the event is missing');
    expect([canonicalJson(event.data), canonicalJson(event.metadata)]).toEqual([stored.data, stored.metadata]);
    const dataSha256 = saltedSha256(stored.dataSalt, event.data);
    const metadataSha256 = saltedSha256(stored.metadataSalt, event.metadata);
    expect(hash('sha256', toEnvelope(event, { dataSha256, metadataSha256 }))).toBe(stored.sha256);
  }
  expect(events[0]?.data).toMatchObject({ gateway_options: { a: [1e21, 1e-7, 0, 2 ** 53] } });
  const salts = rows.flatMap(({ dataSalt, metadataSalt }) => [dataSalt, metadataSalt]);
  expect(new Set(salts).size).toBe(4);
});
