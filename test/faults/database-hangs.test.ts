import { expect, onTestFinished, test } from 'vitest';
import { createGatewayKey } from '#libs/identity/gateway-key.ts';
import { eventually } from '#test/eventually.ts';
import { startRig } from './rig/start-rig.ts';

// A Postgres that is stopped with SIGSTOP: its connections stay open, new ones are accepted by the kernel, and nothing
// answers.

// Far longer than an answer takes (4 s), and far shorter than the time limits of the server.
const answerMs = 15_000;

type Asked = { status: number; retryAfter: string | null; text: string };

test('while the database hangs live calls go on, all other calls get an error in time, and afterwards everything works', async () => {
  const rig = await startRig();
  onTestFinished(() => rig.stop({ keepFolder: false }));
  const { baseUrl, key } = rig;
  const ask = async (method: string, path: string, init: RequestInit = {}): Promise<Asked> => {
    const url = path.startsWith('http') ? path : `${baseUrl}${path}`;
    const headers = { authorization: `Bearer ${key}`, ...(init.headers as Record<string, string> | undefined) };
    const response = await fetch(url, { method, ...init, headers, signal: AbortSignal.timeout(answerMs) });
    const text = await response.text();
    return { status: response.status, retryAfter: response.headers.get('retry-after'), text };
  };
  const json = (body: unknown): RequestInit => ({
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  const chat = (content: string) =>
    ask('POST', '/chat/completions', json({ model: '@simulator/sim-echo', messages: [{ role: 'user', content }] }));
  const form = (): FormData => {
    const data = new FormData();
    data.set('purpose', 'batch');
    data.set('file', new Blob(['{}\n']), 'input.jsonl');
    return data;
  };
  const lines = Array.from({ length: 60 }, (_value, index) =>
    JSON.stringify({
      custom_id: `line-${index}`,
      method: 'POST',
      url: '/v1/chat/completions',
      body: { model: '@simulator/sim-small+500ms', messages: [{ role: 'user', content: `line ${index}` }] },
    }),
  );
  const input = await rig.client.upload('input.jsonl', Buffer.from(`${lines.join('\n')}\n`), 'upload-1');
  const batch = await rig.client.createBatch(
    { input_file_id: input.id, endpoint: '/v1/chat/completions', completion_window: '24h' },
    { idempotencyKey: 'create-1', ownKey: false },
  );
  const { origin } = new URL(baseUrl);
  const probes = [origin, ...rig.workerOrigins];
  await eventually(
    () => rig.client.retrieveBatch(batch.id),
    ({ status }) => status === 'in_progress',
  );
  const ready = async () => await Promise.all(probes.map((probe) => ask('GET', `${probe}/health/ready`)));
  const fromDatabase = /^sluice_queue_jobs\{[^}]+\} \d/m;
  for (const probe of probes) expect((await ask('GET', `${probe}/metrics`)).text).toMatch(fromDatabase);

  const goOn = await rig.postgres.freeze();
  try {
    expect(await chat('just now')).toMatchObject({ status: 200 });
    const stored = await Promise.all([
      ask('GET', '/batches'),
      ask('GET', `/batches/${batch.id}`),
      ask('GET', '/files'),
      ask('GET', '/logs'),
      ask('GET', '/configs'),
      ask('GET', '/api-keys'),
      ask('GET', `/files/${input.id}/content`),
      ask('DELETE', `/files/${input.id}`),
      ask('POST', `/batches/${batch.id}/cancel`),
      ask('POST', '/files', { body: form() }),
      ask(
        'POST',
        '/batches',
        json({ input_file_id: input.id, endpoint: '/v1/chat/completions', completion_window: '24h' }),
      ),
      ask('POST', '/api-keys', json({ name: 'new' })),
      ask('GET', '/batches', { headers: { authorization: `Bearer ${createGatewayKey().reveal()}` } }),
    ]);
    for (const { status, retryAfter, text } of stored) {
      expect([status, retryAfter, text]).toEqual([503, '1', expect.stringContaining('Try again')]);
    }
    for (const { status, text } of await ready()) {
      expect([status, text]).toEqual([503, expect.stringContaining('database: does not answer')]);
    }
    for (const probe of probes) {
      const metrics = await ask('GET', `${probe}/metrics`);
      // The last value, instead of none.
      expect([metrics.status, metrics.text]).toEqual([200, expect.stringMatching(fromDatabase)]);
      expect(await ask('GET', `${probe}/health/live`)).toMatchObject({ status: 200 });
    }
    for (const word of ['one', 'two', 'three']) expect(await chat(word)).toMatchObject({ status: 200 });
  } finally {
    goOn();
  }

  await eventually(ready, (answers) => answers.every(({ status }) => status === 200));
  const ended = await eventually(
    () => rig.client.retrieveBatch(batch.id),
    ({ status }) => status === 'completed',
    { timeoutMs: 60_000 },
  );
  expect(ended.request_counts).toEqual({ total: 60, completed: 60, failed: 0 });
  const recorded = await eventually(
    () => rig.db.selectFrom('request_log').select('id').where('model', 'like', '%sim-echo').execute(),
    (rows) => rows.length >= 4,
  );
  expect(recorded).toHaveLength(4);
  expect(rig.takeCrashes()).toEqual([]);
}, 180_000);
