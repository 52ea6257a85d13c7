import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { EventObject } from '#libs/contracts/logs/events.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { sealCalls } from '#libs/request-log/seal/seal-calls.ts';
import { insertEventSql } from '#test/insert-event.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { asker, type Ask } from './people-kit.ts';
import { startHttpsReceiver, startSyslogReceiver, type Received, type Receiver } from './siem-receiver.ts';

// Events are pushed to servers with a private certificate. Retries are made due at once.

const token = 'CANARY-siem-token-1f2e3d4c';
const folder = await mkdtemp(path.join(tmpdir(), 'sluice-siem-'));
let platform: TestPlatform;
let worker: { stop: () => Promise<void> };
let ask: Ask;
/** Of a new workspace. */
let workspace: { id: string; key: string };
beforeAll(async () => {
  const environment = { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', SLUICE_SIEM_FOLDER: folder };
  platform = await startPlatform({ worker: false, environment });
  worker = await platform.startWorker();
  ask = asker(platform);
});
afterAll(async () => {
  await platform?.stop();
  await rm(folder, { recursive: true, force: true });
});
beforeEach(async () => {
  workspace = await createWorkspace();
});

async function createWorkspace(): Promise<typeof workspace> {
  const { id = '' } = (await ask('POST', '/admin/workspaces', { name: 'siem' })).body;
  const { key = '' } = (await ask('POST', '/api-keys', { name: 'admin', workspace_id: id })).body;
  return { id, key };
}

type Destination = {
  id: string;
  failures: number;
  last_error: string | null;
  lag_seconds: number;
  last_sent_at: string | null;
};

async function createDestination(body: object, key: string | null = workspace.key): Promise<Destination> {
  const made = await ask('POST', '/siem-destinations', { name: 'SIEM', ...body }, key);
  if (made.status !== 200) throw new Error(JSON.stringify(made.body));
  return made.body as unknown as Destination;
}

const read = async ({ id }: { id: string }): Promise<Destination> =>
  (await ask('GET', `/siem-destinations/${id}`)).body as unknown as Destination;

const eventsOf = async (workspaceId: string): Promise<EventObject[]> => {
  const { body } = await ask('GET', `/events?limit=100&workspace_id=${workspaceId}`);
  return body.data as unknown as EventObject[];
};

/** The events since the creation of a destination, as a reader of the log sees them. */
async function eventsSince({ id }: { id: string }, workspaceId: string): Promise<EventObject[]> {
  const all = await eventsOf(workspaceId);
  return all.slice(all.findIndex(({ stream }) => stream === id));
}

const makeDue = ({ id }: { id: string }) =>
  platform.database.pool.query('update siem_cursor set next_attempt_at = now() where destination_id = $1', [id]);

/** Appends events without a request. */
const appendMany = (count: number, prefix: string, workspaceId = workspace.id) =>
  platform.database.pool.query(
    insertEventSql(
      {
        workspace_id: `'${workspaceId}'`,
        stream_id: `'${prefix}_' || n`,
        metadata: `'{"actor": {"type": "system", "id": "test"}}'`,
      },
      `from generate_series(1, ${count}) as n`,
    ),
  );

const linesOf = ({ requests }: Pick<Receiver, 'requests'>): EventObject[] =>
  requests.flatMap(({ body }) =>
    body
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as EventObject),
  );

const caughtUp = (destination: { id: string }) =>
  eventually(
    () => read(destination),
    ({ lag_seconds: lag, last_sent_at: at }) => lag === 0 && at !== null,
  );

const untilSent = (receiver: Receiver, last: string) =>
  eventually(
    () => linesOf(receiver),
    (lines) => lines.some(({ stream }) => stream === last),
  );

const failed = (destination: { id: string }, failures = 1) =>
  eventually(
    () => read(destination),
    (one) => one.failures >= failures,
  );

test('a workspace gets its own events as JSON lines, as it would read them, in order', async () => {
  const receiver = await startHttpsReceiver();
  const destination = await createDestination({ type: 'https', url: `${receiver.url}/in?x=1`, ca: receiver.ca, token });
  const other = await createWorkspace();
  await ask('POST', '/configs', { name: 'elsewhere', config: { retry: { attempts: 1 } } }, other.key);
  for (const name of ['one', 'two'])
    await ask('POST', '/configs', { name, config: { retry: { attempts: 2 } } }, workspace.key);
  // An event is listed when no older transaction is open.
  const expected = await eventually(
    () => eventsSince(destination, workspace.id),
    (events) => events.length === 3,
  );
  await eventually(
    () => linesOf(receiver),
    (lines) => lines.length >= expected.length,
  );
  expect(linesOf(receiver)).toEqual(expected);
  expect(expected.map(({ type }) => type)).toEqual(['siem_destination.created', 'config.created', 'config.created']);
  expect(receiver.requests[0]).toMatchObject({
    path: '/in?x=1',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/x-ndjson' },
  });
  await caughtUp(destination);
});

test('Splunk gets a page again until it answers with 200, and pages become smaller meanwhile', async () => {
  const receiver = await startHttpsReceiver();
  receiver.answer((_request, count) => [503, 400][count - 1] ?? 200);
  const { url, ca } = receiver;
  await appendMany(20, 'early');
  const destination = await createDestination({ type: 'splunk_hec', url, ca, token, format: 'ocsf' });
  expect(await failed(destination, 1)).toMatchObject({ last_error: `${new URL(url).host} answered with status 503.` });
  await appendMany(40, 'splunk');
  await makeDue(destination);
  expect(await failed(destination, 2)).toMatchObject({ last_error: `${new URL(url).host} answered with status 400.` });
  await makeDue(destination);
  const accepted = () => receiver.requests.slice(2).flatMap((request) => linesOf({ requests: [request] }));
  await eventually(accepted, (lines) => lines.length >= 41);
  await caughtUp(destination);
  expect(await read(destination)).toMatchObject({ failures: 0, last_error: null, next_attempt_at: null });
  expect(accepted()).toHaveLength(41);
  const sent = linesOf(receiver) as unknown as { time: number; event: { class_uid: number; unmapped: EventObject } }[];
  expect(receiver.requests.map(({ path: at }) => at)).toEqual(receiver.requests.map(() => '/services/collector/event'));
  expect(receiver.requests[0]?.headers.authorization).toBe(`Splunk ${token}`);
  expect(sent.every(({ event }) => event.class_uid === 6003)).toBe(true);
});

test('a page of which a collector dropped records is not sent again, and the destination counts them', async () => {
  const receiver = await startHttpsReceiver();
  receiver.answer((_request, count) =>
    count === 1 ? { partialSuccess: { rejectedLogRecords: '1', errorMessage: 'too large' } } : { partialSuccess: {} },
  );
  const to = { type: 'https', format: 'opentelemetry', url: `${receiver.url}/v1/logs`, ca: receiver.ca };
  const destination = await createDestination(to);
  await caughtUp(destination);
  await ask('POST', '/configs', { name: 'after', config: { retry: { attempts: 1 } } }, workspace.key);
  await eventually(
    () => receiver.requests,
    (requests) => requests.some(({ body }) => body.includes('config.created')),
  );
  await caughtUp(destination);
  expect(await read(destination)).toMatchObject({ dropped_records: 1, failures: 0, last_error: null });
  expect(receiver.requests.filter(({ body }) => body.includes('siem_destination.created'))).toHaveLength(1);
});

test('syslog messages arrive whole and in order', async () => {
  const receiver = await startSyslogReceiver();
  const destination = await createDestination({ type: 'syslog', url: receiver.url, ca: receiver.ca });
  await appendMany(300, 'syslog');
  await eventually(receiver.messages, (messages) => messages.length >= 301);
  const events = receiver.messages().map((message) => JSON.parse(message.slice(message.indexOf('{'))) as EventObject);
  expect(events.map(({ stream }) => stream)).toEqual([
    destination.id,
    ...Array.from({ length: 300 }, (_value, index) => `syslog_${index + 1}`),
  ]);
  expect(receiver.messages()[0]).toMatch(/^<110>1 \S+Z \S+ sluice - siem_destination\.created - \{/);
});

test("the organisation's folder gets the events of all workspaces, one on each line", async () => {
  const destination = await createDestination({ type: 'folder', format: 'cloudevents' }, platform.adminKey);
  await ask('POST', '/configs', { name: 'one', config: { retry: { attempts: 2 } } }, workspace.key);
  const other = await createWorkspace();
  await caughtUp(destination);
  const [file = ''] = await readdir(path.join(folder, destination.id));
  const name = path.join(folder, destination.id, file);
  const parse = async () =>
    (await readFile(name, 'utf8'))
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as { data: EventObject });
  const workspaces = new Set((await parse()).map(({ data }) => data.workspace_id));
  expect(workspaces.isSupersetOf(new Set(['org_default', workspace.id, other.id]))).toBe(true);
  // A worker was killed in the middle of a line.
  await writeFile(name, '{"torn', { flag: 'a' });
  await ask('POST', '/configs', { name: 'two', config: { retry: { attempts: 2 } } }, workspace.key);
  const lines = await eventually(
    async () => (await readFile(name, 'utf8')).split('\n'),
    (found) => found.at(-1) === '' && found.includes('{"torn'),
  );
  expect(JSON.parse(lines.at(-2) ?? '')).toMatchObject({ specversion: '1.0', type: 'sluice.config.created' });
  await ask('DELETE', `/siem-destinations/${destination.id}`);
  const own = await ask('POST', '/siem-destinations', { name: 'own', type: 'folder' }, workspace.key);
  expect(own).toMatchObject({ status: 403, body: { error: { code: 'organisation_key_required' } } });
});

/** Makes calls, one after the other, and returns their status. */
async function call(model: string, count = 1, config?: string): Promise<number[]> {
  const statuses: number[] = [];
  for (let at = 0; at < count; at += 1) {
    const answer = await fetch(`${platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${workspace.key}`,
        'content-type': 'application/json',
        ...(config === undefined ? {} : { 'x-gateway-config': config }),
      },
      body: JSON.stringify({ model, messages: [{ role: 'user', content: 'Say hello.' }] }),
    });
    await answer.text();
    statuses.push(answer.status);
  }
  return statuses;
}

const guarded = (deny: boolean) => ({
  input_guardrails: [
    { deny, checks: [{ id: 'default.contains', parameters: { words: ['hello'], operator: 'none' } }] },
  ],
});

/** Seals the calls of all workspaces when this many of the workspace are recorded. */
async function seal(calls: number): Promise<void> {
  const { db } = platform.database;
  const recorded = async () =>
    (await db.selectFrom('request_log_row').select('id').where('workspace_id', '=', workspace.id).execute()).length;
  await eventually(recorded, (count) => count === calls);
  const logger = createLogger({ name: 'test', level: 'silent' });
  await sealCalls({ db, eventLog: createEventLog(db), logger });
}

test('records of calls come in order before the event that seals them, and a refused page repeats none', async () => {
  const receiver = await startHttpsReceiver();
  const { url, ca } = receiver;
  const destination = await createDestination({ type: 'https', url, ca, calls: 'all' });
  const without = await startHttpsReceiver();
  await createDestination({ type: 'https', url: without.url, ca });
  await caughtUp(destination);
  await Promise.all(Array.from({ length: 4 }, () => call('@simulator/sim-small', 70)));
  const accepted: Received[] = [];
  let refusals = 0;
  receiver.answer((request) => {
    // Refuses the second page of records once.
    if (accepted.length === 1 && refusals === 0) {
      refusals += 1;
      return 503;
    }
    accepted.push(request);
    return 200;
  });
  await seal(280);
  await failed(destination);
  await makeDue(destination);
  const lines = await eventually(
    () => linesOf({ requests: accepted }),
    (found) => found.some(({ type }) => type === 'request_log.calls_sealed'),
  );
  const listed = await ask('GET', `/logs?limit=100&workspace_id=${workspace.id}`);
  // `api_key_name` is the current name of the key, which is not part of the record.
  const [{ api_key_name: _name, ...newest } = { api_key_name: '' }] = listed.body.data as unknown as {
    api_key_name: string;
  }[];
  const records = lines.filter(({ object }) => (object as string) === 'log');
  expect(records).toHaveLength(280);
  expect(records.map(({ id }) => id)).toEqual([...new Set(records.map(({ id }) => id))].toSorted());
  expect(records.at(-1)).toEqual({ ...newest, workspace_id: workspace.id });
  expect(lines.at(-1)).toMatchObject({ type: 'request_log.calls_sealed', data: { records: 280 } });
  const events = await eventually(
    () => linesOf(without),
    (found) => found.some(({ type }) => type === 'request_log.calls_sealed'),
  );
  expect(events.filter(({ object }) => object !== 'event')).toEqual([]);
});

test('a destination for refused calls gets those that Sluice refused or a guardrail failed', async () => {
  const receiver = await startHttpsReceiver();
  const { url, ca } = receiver;
  const form = { events: 'refusals', format: 'cloudevents', calls: 'refused' };
  const destination = await createDestination({ type: 'https', url, ca, ...form });
  expect(await call('@simulator/sim-small', 3)).toEqual([200, 200, 200]);
  expect(await call('@simulator/sim-fault-400')).toEqual([400]);
  for (const deny of [true, false])
    await ask('POST', '/configs', { name: 'guarded', slug: `deny-${deny}`, config: guarded(deny) }, workspace.key);
  expect(await call('@simulator/sim-small', 1, 'deny-true')).toEqual([446]);
  expect(await call('@simulator/sim-small', 1, 'deny-false')).toEqual([246]);
  await seal(6);
  await caughtUp(destination);
  const sent = receiver.requests.flatMap(({ body }) => JSON.parse(body) as { type: string; data: object }[]);
  const calls = sent.filter(({ type }) => type.startsWith('sluice.call.'));
  expect(calls).toMatchObject([
    { type: 'sluice.call.refused', data: { object: 'log', status: 446, guardrails: [{ verdict: 'denied' }] } },
    { type: 'sluice.call.succeeded', data: { object: 'log', status: 246, guardrails: [{ verdict: 'failed' }] } },
  ]);
  expect(sent.filter(({ type }) => type === 'sluice.request_log.calls_sealed')).toEqual([]);
});

test('a workspace does not see the destinations of others and of the organisation', async () => {
  const hidden = await createDestination(
    { type: 'https', url: 'https://127.0.0.1:9', enabled: false },
    platform.adminKey,
  );
  const own = await createDestination({ type: 'https', url: 'https://127.0.0.1:9', enabled: false });
  const listed = await ask('GET', '/siem-destinations', undefined, workspace.key);
  expect((listed.body.data as unknown as Destination[]).map(({ id }) => id)).toEqual([own.id]);
  for (const method of ['GET', 'DELETE'])
    expect((await ask(method, `/siem-destinations/${hidden.id}`, undefined, workspace.key)).status).toBe(404);
  const { body } = await ask('POST', '/api-keys', {
    name: 'narrow',
    workspace_id: workspace.id,
    scopes: ['logs.read'],
  });
  expect((await ask('GET', '/siem-destinations', undefined, body['key'])).status).toBe(403);
  await ask('DELETE', `/siem-destinations/${hidden.id}`);
});

test('a worker that stops in the middle repeats at most a page and loses no event', async () => {
  const receiver = await startHttpsReceiver();
  const hung = Promise.withResolvers<void>();
  receiver.answer((_request, count) => {
    if (count !== 2) return 200;
    hung.resolve();
    return null;
  });
  const { url, ca } = receiver;
  const destination = await createDestination({ type: 'https', url, ca, enabled: false });
  await appendMany(700, 'restart');
  await ask('PUT', `/siem-destinations/${destination.id}`, { enabled: true }, workspace.key);
  await hung.promise;
  await worker.stop();
  worker = await platform.startWorker();
  await makeDue(destination);
  await untilSent(receiver, 'restart_700');
  const [first, cut, ...later] = receiver.requests.map((request) =>
    linesOf({ requests: [request] }).map(({ id }) => id),
  );
  expect(later[0]).toEqual(cut);
  const streams = linesOf({ requests: [receiver.requests[0]!, ...receiver.requests.slice(2)] }).map(
    ({ stream }) => stream,
  );
  expect(streams.filter((stream) => stream.startsWith('restart_'))).toEqual(
    Array.from({ length: 700 }, (_value, index) => `restart_${index + 1}`),
  );
  expect(first).toHaveLength(250);
});

test('a destination that hangs does not delay another one', async () => {
  const hanging = await startHttpsReceiver();
  hanging.answer(() => null);
  const silent = await startSyslogReceiver({ hangs: true });
  const receiver = await startHttpsReceiver();
  const { ca } = receiver;
  const stuck = await createDestination({ type: 'https', url: hanging.url, ca });
  const mute = await createDestination({ type: 'syslog', url: silent.url, ca });
  await eventually(
    () => hanging.requests.length,
    (count) => count > 0,
  );
  const destination = await createDestination({ type: 'https', url: receiver.url, ca });
  await appendMany(300, 'flows');
  await untilSent(receiver, 'flows_300');
  expect((await read(destination)).failures).toBe(0);
  expect((await read(stuck)).last_sent_at).toBeNull();
  // They are given up after a while, and tried again.
  expect(await failed(stuck)).toMatchObject({ last_error: expect.stringContaining('did not answer within') as string });
  expect(await failed(mute)).toMatchObject({ last_error: expect.stringContaining('took longer than') as string });
});

test('private addresses and servers with another certificate are refused, and unreachable ones are named', async () => {
  for (const [type, url] of [
    ['https', 'https://169.254.169.254/latest'],
    ['splunk_hec', 'https://10.0.0.1:8088'],
    ['syslog', 'tls://0xa9.254.169.254:6514'],
    ['syslog', 'tls://[fd00::1]:6514'],
  ]) {
    const { status, body } = await ask('POST', '/siem-destinations', { name: 'x', type, url }, workspace.key);
    expect([url, status, body.error.code]).toEqual([url, 400, 'destination_not_allowed']);
  }
  for (const [type, url] of [
    ['https', 'http://siem.example.com'],
    ['https', undefined],
    ['syslog', 'https://siem.example.com'],
    ['https', 'file:///etc/passwd'],
  ]) {
    const { status, body } = await ask('POST', '/siem-destinations', { name: 'x', type, url }, workspace.key);
    expect([url, status, body.error.param]).toEqual([url, 400, 'url']);
  }
  const receiver = await startHttpsReceiver();
  const { last_error: https } = await failed(await createDestination({ type: 'https', url: receiver.url, token }));
  expect(https).toMatch(/^127\.0\.0\.1:\d+ could not be reached \([A-Z_]+\)\.$/);
  const listener = await startSyslogReceiver();
  const { last_error: syslog } = await failed(await createDestination({ type: 'syslog', url: listener.url }));
  expect(syslog).toMatch(/^127\.0\.0\.1:\d+ could not be reached \([A-Z_]+\)\.$/);
  expect([receiver.requests, listener.messages()]).toEqual([[], []]);
  const { last_error: closed } = await failed(await createDestination({ type: 'https', url: 'https://127.0.0.1:9' }));
  expect(closed).toBe('127.0.0.1:9 could not be reached (ECONNREFUSED).');
});

test('a token goes only to the server that it was stored for, and is shown nowhere', async () => {
  const [receiver, elsewhere] = [await startHttpsReceiver(), await startHttpsReceiver()];
  receiver.answer(() => 400);
  const destination = await createDestination({ type: 'https', url: receiver.url, ca: receiver.ca, token });
  await failed(destination);
  const moved = await ask('PUT', `/siem-destinations/${destination.id}`, { url: elsewhere.url }, workspace.key);
  expect(moved).toMatchObject({ status: 400, body: { error: { param: 'token' } } });
  const again = { url: elsewhere.url, token: 'Basic CANARY-siem-token-other' };
  expect(await ask('PUT', `/siem-destinations/${destination.id}`, again, workspace.key)).toMatchObject({
    status: 200,
    body: { has_token: true },
  });
  await makeDue(destination);
  await caughtUp(destination);
  expect(elsewhere.requests[0]?.headers.authorization).toBe(again.token);
  const metrics = await (await fetch(new URL('/metrics', platform.baseUrl))).text();
  expect(metrics).toMatch(/^sluice_siem_lag_seconds\{owner="workspace"\} \d/m);
  expect(metrics).toMatch(/^sluice_siem_failing_destinations\{owner="workspace"\} \d/m);
  const places = ['/siem-destinations', `/siem-destinations/${destination.id}`, '/events?limit=100', '/audit-logs'];
  const shown = await Promise.all(
    places.map(async (place) => (await ask('GET', place, undefined, workspace.key)).body),
  );
  const { rows } = await platform.database.pool.query(
    `select data::text from event union all select data::text from resource
     union all select siem_cursor::text from siem_cursor`,
  );
  expect(JSON.stringify([metrics, shown, rows])).not.toContain('CANARY-siem-token');
  expect(linesOf(elsewhere).map(({ type }) => type)).toContain('siem_destination.updated');
});

test('a disabled destination keeps its place, and only refusals are sent where wanted', async () => {
  const receiver = await startHttpsReceiver();
  const { url, ca } = receiver;
  const destination = await createDestination({ type: 'https', url, ca, events: 'refusals', enabled: false });
  const { body } = await ask('POST', '/api-keys', {
    name: 'narrow',
    workspace_id: workspace.id,
    scopes: ['logs.read'],
  });
  expect((await ask('GET', '/events', undefined, body['key'])).status).toBe(403);
  await eventually(
    () => eventsSince(destination, workspace.id),
    (events) => events.some(({ type }) => type === 'api_key.request_refused'),
  );
  expect(receiver.requests).toEqual([]);
  await ask('PUT', `/siem-destinations/${destination.id}`, { enabled: true }, workspace.key);
  await eventually(
    () => receiver.requests.length,
    (count) => count > 0,
  );
  expect(linesOf(receiver).map(({ type }) => type)).toEqual(['api_key.request_refused']);
});

test('a failed guardrail of a live call is an event that is pushed', async () => {
  const receiver = await startHttpsReceiver();
  const { url, ca } = receiver;
  await createDestination({ type: 'https', url, ca, events: 'refusals' });
  const noApples = { 'default.contains': { operator: 'none', words: ['Apple'] }, id: 'no-apples', deny: true };
  const call = await fetch(`${platform.baseUrl}/chat/completions`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${workspace.key}`,
      'content-type': 'application/json',
      'x-gateway-config': JSON.stringify({ virtual_key: 'simulator', input_guardrails: [noApples] }),
    },
    body: JSON.stringify({ model: 'sim-small', messages: [{ role: 'user', content: 'Apple pie' }] }),
  });
  expect(call.status).toBe(446);
  const [event] = await eventually(
    () => (receiver.requests.length === 0 ? [] : linesOf(receiver)),
    ({ length }) => length > 0,
  );
  expect(event).toMatchObject({
    type: 'api_key.guardrail_failed',
    workspace_id: workspace.id,
    data: { kind: 'input_guardrails', id: 'no-apples', slug: null, version: null, verdict: 'denied', count: 1 },
  });
});
