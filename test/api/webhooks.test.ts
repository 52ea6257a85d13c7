import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { chatLines, createBatch, runBatch } from './batch-kit.ts';
import { createWorkspace } from './second-workspace.ts';
import { sdks, type Client } from './sdk.ts';

// Batches end, and a real receiver is called. Retries are made due at once, because the first one is 5 s later.

const [sdk] = sdks as [(typeof sdks)[number]];
let platform: TestPlatform;
let worker: { stop: () => Promise<void> };
let receiver: Upstream;
let client: Client;
beforeAll(async () => {
  const environment = {
    SLUICE_EGRESS_ALLOW: '127.0.0.0/8',
    SLUICE_FINE_TUNING_POLL_MIN: '10ms',
    SLUICE_FINE_TUNING_POLL_MAX: '100ms',
  };
  platform = await startPlatform({ worker: false, environment });
  worker = await platform.startWorker();
});
afterAll(() => platform?.stop());
beforeEach(async () => {
  receiver = await startUpstream((reply) => reply.json(200, {}));
  onTestFinished(() => receiver.stop());
  client = await createClient();
});

async function createClient(): Promise<Client> {
  return new sdk.OpenAI({ apiKey: await createWorkspace(platform), baseURL: platform.baseUrl, maxRetries: 0 });
}

const createEndpoint = (of: Client, url: URL, types: string[] = ['batch.completed']) =>
  of.webhooks.create({ name: 'Results', url: url.href, event_types: types as never });

const endBatch = (of: Client) => runBatch(sdk, of, chatLines(1));

type Delivery = {
  id: string;
  status: string;
  attempts: number;
  last_status_code: number | null;
  last_error: string | null;
  next_attempt_at: number | null;
};

const deliveriesOf = async (endpoint: { id: string }): Promise<Delivery[]> =>
  (await client.get<{ data: Delivery[] }>(`/webhook_endpoints/${endpoint.id}/deliveries`)).data;

const resend = (endpoint: { id: string }, delivery: Delivery | undefined) =>
  client.post<Delivery>(`/webhook_endpoints/${endpoint.id}/deliveries/${delivery?.id}/resend`);

/** Waits until the only delivery of an endpoint is as expected. */
const delivered = async (endpoint: { id: string }, expected: Partial<Delivery>): Promise<Delivery> => {
  const [found] = await eventually(
    () => deliveriesOf(endpoint),
    ([one]) => Object.entries(expected).every(([name, value]) => one?.[name as keyof Delivery] === value),
  );
  return found!;
};

const makeDue = (endpoint: { id: string }) =>
  platform.database.pool.query(
    'update webhook_delivery set next_attempt_at = now() where endpoint_id = $1 and next_attempt_at is not null',
    [endpoint.id],
  );

const received = (count: number, timeoutMs = 30_000) =>
  eventually(
    () => receiver.requests,
    (requests) => requests.length >= count,
    { timeoutMs },
  );

test('the end of a batch is sent until the receiver accepts it, and again on request, always under one ID', async () => {
  receiver.script([(reply) => reply.json(503, {}, { 'retry-after': '3600' }), (reply) => reply.json(200, {})]);
  const endpoint = await createEndpoint(client, receiver.url);
  const batch = await endBatch(client);
  await received(1);
  const waiting = await delivered(endpoint, { status: 'pending', attempts: 1, last_status_code: 503 });
  expect(waiting.next_attempt_at).toBeGreaterThan(Date.now() / 1_000 + 3_500);
  await makeDue(endpoint);
  const done = await delivered(endpoint, { status: 'succeeded', attempts: 2, last_status_code: 200 });
  expect(await resend(endpoint, done)).toMatchObject({ status: 'pending' });
  const requests = await received(3);
  for (const { headers, body } of requests) {
    const event = await client.webhooks.unwrap(body.toString(), headers, endpoint.signing_secret);
    expect(event).toEqual({
      id: headers['webhook-id'],
      object: 'event',
      type: 'batch.completed',
      created_at: batch.completed_at,
      data: { id: batch.id },
    });
  }
  expect(new Set(requests.map(({ headers }) => headers['webhook-id']))).toHaveLength(1);
});

test('only the wanted events since the creation of an endpoint are sent', async () => {
  await endBatch(client);
  const endpoint = await createEndpoint(client, receiver.url, ['batch.failed']);
  await endBatch(client);
  const failed = await runBatch(sdk, client, 'not JSON\n');
  const [request] = await received(1);
  expect(JSON.parse(request?.body.toString() ?? '')).toMatchObject({ type: 'batch.failed', data: { id: failed.id } });
  expect(await deliveriesOf(endpoint)).toHaveLength(1);
});

test('the end of a fine-tuning job is sent under the name that OpenAI gives it', async () => {
  await createEndpoint(client, receiver.url, ['fine_tuning.job.succeeded']);
  const messages = [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello' },
  ];
  const file = await sdk.toFile(Buffer.from(`${JSON.stringify({ messages })}\n`.repeat(10)), 'train.jsonl');
  const { id: training_file } = await client.files.create({ file, purpose: 'fine-tune' });
  const job = await client.fineTuning.jobs.create({ model: '@simulator/sim-small', training_file });
  const [request] = await received(1);
  const event = JSON.parse(request?.body.toString() ?? '') as object;
  expect(event).toMatchObject({ type: 'fine_tuning.job.succeeded', data: { id: job.id } });
});

test('an endpoint that cannot be reached is retried like one that answers with an error', async () => {
  const endpoint = await createEndpoint(client, new URL('http://127.0.0.1:9'));
  await endBatch(client);
  const waiting = await delivered(endpoint, { status: 'pending', last_error: 'upstream_unreachable' });
  expect(waiting).toMatchObject({ attempts: 1, last_status_code: null });
  expect(waiting.next_attempt_at).toBeLessThan(Date.now() / 1_000 + 30);
});

test('an answer with 410 disables the endpoint until it is enabled again', async () => {
  receiver.script((reply) => reply.json(410, {}));
  const endpoint = await createEndpoint(client, receiver.url);
  await endBatch(client);
  const ended = await delivered(endpoint, { status: 'failed', last_status_code: 410, last_error: 'endpoint_disabled' });
  expect(await client.webhooks.retrieve(endpoint.id)).toMatchObject({ status: 'disabled' });
  const { data: events } = await client.get<{ data: object[] }>(
    `/events?stream=${endpoint.id}&type=webhook_endpoint.disabled`,
  );
  expect(events).toHaveLength(1);
  const witness = await startUpstream((reply) => reply.json(200, {}));
  onTestFinished(() => witness.stop());
  await createEndpoint(client, witness.url);
  await endBatch(client);
  await eventually(
    () => witness.requests.length,
    (count) => count === 1,
  );
  await expect(resend(endpoint, ended)).rejects.toMatchObject({ status: 409, code: 'webhook_endpoint_disabled' });
  receiver.script((reply) => reply.json(204, {}));
  expect(await client.webhooks.update(endpoint.id, { status: 'enabled' } as object)).toMatchObject({
    status: 'enabled',
  });
  await resend(endpoint, ended);
  await delivered(endpoint, { status: 'succeeded' });
  expect(await deliveriesOf(endpoint)).toHaveLength(1);
});

test('a receiver that hangs does not hold up another workspace', async () => {
  receiver.script(() => new Promise(() => {}));
  await createEndpoint(client, receiver.url);
  for (let count = 0; count < 6; count += 1) await createBatch(sdk, client, chatLines(1));
  await received(1);
  const quick = await startUpstream((reply) => reply.json(200, {}));
  onTestFinished(() => quick.stop());
  const other = await createClient();
  await createEndpoint(other, quick.url);
  await endBatch(other);
  await eventually(
    () => quick.requests.length,
    (count) => count === 1,
  );
  expect(receiver.requests.length).toBeLessThanOrEqual(4);
});

test('after a rotation, the previous secret signs too if the caller wants that, and no secret is recorded', async () => {
  const endpoint = await createEndpoint(client, receiver.url);
  const rotated = await client.webhooks.rotateSecret(endpoint.id, { keep_old_secret_active_for_24_hours: true });
  await endBatch(client);
  const [{ headers, body } = { headers: {}, body: '' }] = await received(1);
  const secrets = [endpoint.signing_secret, rotated.signing_secret];
  for (const secret of secrets)
    expect(await client.webhooks.unwrap(body.toString(), headers, secret)).toMatchObject({ type: 'batch.completed' });
  const last = await client.webhooks.rotateSecret(endpoint.id);
  await resend(endpoint, await delivered(endpoint, { status: 'succeeded' }));
  const again = (await received(2))[1]!;
  await expect(client.webhooks.unwrap(again.body.toString(), again.headers, rotated.signing_secret)).rejects.toThrow(
    /signature/,
  );
  await client.webhooks.unwrap(again.body.toString(), again.headers, last.signing_secret);
  for (const table of ['event', 'resource', 'command_result', 'webhook_delivery']) {
    const { rows } = await platform.database.pool.query<{ text: string }>(`select t::text as text from ${table} as t`);
    for (const secret of [...secrets, last.signing_secret])
      expect(rows.some(({ text }) => text.includes(secret.slice('whsec_'.length, -4)))).toBe(false);
  }
});

test('beyond the limit of pending deliveries, further ones fail at first and can be resent', async () => {
  const endpoint = await createEndpoint(client, receiver.url);
  const { rows } = await platform.database.pool.query<{ workspace_id: string }>(
    'select workspace_id from resource where id = $1',
    [endpoint.id],
  );
  const workspace = rows[0]?.workspace_id;
  await platform.database.pool.query(
    `insert into webhook_delivery
       (id, workspace_id, endpoint_id, event_id, type, object_id, created_at, next_attempt_at, retry_until)
     select 'whd_' || n, $1, 'whe_other', gen_random_uuid(), 'batch.completed', 'batch', now(), now() + interval '1 day',
       now() + interval '3 days' from generate_series(1, 10000) as n`,
    [workspace],
  );
  await endBatch(client);
  const full = await delivered(endpoint, { status: 'failed', last_error: 'too_many_deliveries', attempts: 0 });
  await expect(resend(endpoint, full)).rejects.toMatchObject({ code: 'too_many_deliveries' });
  await platform.database.pool.query(`delete from webhook_delivery where endpoint_id = 'whe_other'`);
  await resend(endpoint, full);
  await delivered(endpoint, { status: 'succeeded' });
});

test('an eleventh endpoint is refused, and so is a private address', async () => {
  for (let count = 0; count < 10; count += 1) await createEndpoint(client, receiver.url);
  await expect(createEndpoint(client, receiver.url)).rejects.toMatchObject({ code: 'too_many_records' });
  const other = await createClient();
  await expect(createEndpoint(other, new URL('http://10.0.0.1/'))).rejects.toMatchObject({
    status: 400,
    code: 'destination_not_allowed',
  });
  const listed = [];
  for await (const endpoint of client.webhooks.list({ limit: 3 })) listed.push(endpoint);
  expect(listed).toHaveLength(10);
  expect(await client.webhooks.delete(listed[0]?.id ?? '')).toMatchObject({ deleted: true });
});

test('a delivery whose worker was killed before it recorded the answer is sent again under the same ID', async () => {
  await worker.stop();
  const other = spawn(process.execPath, ['apps/worker/main.ts'], {
    env: { ...process.env, ...platform.environment },
    stdio: 'ignore',
  });
  onTestFinished(() => void other.kill('SIGKILL'));
  receiver.script([() => new Promise(() => {}), (reply) => reply.json(200, {})]);
  const endpoint = await createEndpoint(client, receiver.url);
  await createBatch(sdk, client, chatLines(1));
  await received(1, 60_000); // A process takes long to start on a busy machine.
  other.kill('SIGKILL');
  await once(other, 'exit');
  const claimed = await delivered(endpoint, { status: 'pending', attempts: 1, last_status_code: null });
  expect(claimed.next_attempt_at).toBeLessThan(Date.now() / 1_000 + 61);
  worker = await platform.startWorker();
  await makeDue(endpoint);
  await delivered(endpoint, { status: 'succeeded', attempts: 2 });
  const requests = await received(2);
  expect(new Set(requests.map(({ headers }) => headers['webhook-id']))).toHaveLength(1);
});
