import { execFileSync } from 'node:child_process';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { EventObject } from '#libs/contracts/logs/events.ts';
import { saltedSha256 } from '#test/event-envelope.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { hasPackage, python } from './python.ts';

// A reader of the API can check events without code of Sluice.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

const call = async (path: string, body?: object): Promise<unknown> => {
  const headers = { 'x-gateway-api-key': platform.adminKey, 'content-type': 'application/json' };
  const sent = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) };
  return await (await fetch(`${platform.baseUrl}${path}`, { headers, ...sent })).json();
};

async function createEvents(): Promise<EventObject[]> {
  const name = 'Größe 😀 "quoted" \\ €';
  await call('/configs', { name, slug: 'odd', config: { retry: { attempts: 2 } } });
  return await eventually(
    async () => ((await call('/events?limit=100')) as { data: EventObject[] }).data,
    (events) =>
      events.some(({ type }) => type === 'config.created') && events.some(({ type }) => type === 'api_key.created'),
  );
}

/** Checks events with the package rfc8785 and hashlib. Prints the number of events whose data was checked as well. */
const program = `
import hashlib, json, sys, rfc8785
sha = lambda *parts: hashlib.sha256(b''.join(parts)).hexdigest()
whole = 0
for event in json.load(sys.stdin):
    envelope = {'form': 2, 'event_id': event['id'], 'stream_id': event['stream'], **{name: event[name] for name in (
        'workspace_id', 'stream_version', 'type', 'schema_version', 'recorded_at', 'data_sha256', 'metadata_sha256')}}
    assert sha(rfc8785.dumps(envelope)) == event['sha256'], event
    assert sha(bytes.fromhex(event['metadata_salt']), rfc8785.dumps(event['metadata'])) == event['metadata_sha256'], event
    if event['data_salt'] is not None:
        assert sha(bytes.fromhex(event['data_salt']), rfc8785.dumps(event['data'])) == event['data_sha256'], event
        whole += 1
print(whole)
`;

test.skipIf(!hasPackage('rfc8785'))('Python checks the hashes of events that it reads from the API', async () => {
  const events = await createEvents();
  const output = execFileSync(python, ['-c', program], { input: JSON.stringify(events), encoding: 'utf8' });
  expect(Number(output)).toBeGreaterThan(0);
  expect(Number(output)).toBeLessThan(events.length);
});

test('the salt of data is there exactly if the data is complete', async () => {
  const events = await createEvents();
  const config = events.find(({ type }) => type === 'config.created');
  const key = events.find(({ type }) => type === 'api_key.created');
  expect(saltedSha256(config?.data_salt ?? '', config?.data ?? {})).toBe(config?.data_sha256);
  expect(key?.data).not.toHaveProperty('digest');
  expect(key?.data_salt).toBeNull();
});
