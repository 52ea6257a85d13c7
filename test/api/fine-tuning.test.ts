import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, runBatch } from './batch-kit.ts';
import { getFailureCode, sdks, watchCalls, type Client } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// TUNE-1, TUNE-2, and what the routes of fine-tuning take and refuse.

let platform: TestPlatform;
let sent: ReturnType<typeof watchCalls>;
let nowMs = Date.now();
const train = (ms: number): void => {
  nowMs += ms;
};
beforeAll(async () => {
  platform = await startPlatform({
    simulator: { clock: { now: () => nowMs }, trainingMs: 10_000 },
    environment: { SLUICE_FINE_TUNING_POLL_MIN: '10ms', SLUICE_FINE_TUNING_POLL_MAX: '200ms' },
  });
  sent = watchCalls(platform.baseUrl);
});
afterAll(() => platform.stop());

const example = {
  messages: [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello there' },
  ],
};
const trainingText = `${JSON.stringify(example)}\n`.repeat(12);

async function collect<Item>(pages: AsyncIterable<Item>): Promise<Item[]> {
  const items: Item[] = [];
  for await (const item of pages) items.push(item);
  return items;
}

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  let training: string;
  beforeAll(async () => {
    client = new sdk.OpenAI({
      apiKey: platform.adminKey,
      baseURL: platform.baseUrl,
      defaultHeaders: { 'x-gateway-virtual-key': 'simulator' },
    });
    const file = await sdk.toFile(Buffer.from(trainingText), 'train.jsonl');
    training = (await client.files.create({ file, purpose: 'fine-tune' })).id;
  });
  const create = (params: Partial<Parameters<Client['fineTuning']['jobs']['create']>[0]> = {}) =>
    client.fineTuning.jobs.create({ model: 'sim-small', training_file: training, ...params });
  const reaches = (id: string, status: string) =>
    eventually(
      () => client.fineTuning.jobs.retrieve(id),
      (job) => job.status === status,
    );
  const isThere = (id: string) =>
    eventually(
      () => client.fineTuning.jobs.listEvents(id),
      ({ data }) => data.length >= 2,
    );

  test('a job goes from creation to a model, and its events and checkpoints are paged through', async () => {
    const job = await create({
      suffix: 'sdk',
      method: { type: 'supervised', supervised: { hyperparameters: { n_epochs: 4 } } },
    });
    expect(job).toMatchObject({ status: 'validating_files', hyperparameters: { n_epochs: 4 }, fine_tuned_model: null });
    await isThere(job.id);
    train(20_000);
    const done = await reaches(job.id, 'succeeded');
    expect(done.fine_tuned_model).toMatch(/^@simulator\/ft:sim-small:sluice-simulator:sdk:/);
    expect(done.trained_tokens).toBeGreaterThan(0);
    const events = await collect(client.fineTuning.jobs.listEvents(job.id, { limit: 5 }));
    expect(events.length).toBeGreaterThan(20);
    expect(new Set(events.map(({ id }) => id)).size).toBe(events.length);
    expect(events[0]?.message).toBe('The job has successfully completed');
    expect(events.at(-1)?.message).toBe(`Created fine-tuning job: ${job.id}`);
    const page = await client.fineTuning.jobs.listEvents(job.id);
    expect([page.data.length, page.has_more]).toEqual([20, true]);
    const checkpoints = await collect(client.fineTuning.jobs.checkpoints.list(job.id, { limit: 2 }));
    expect(checkpoints.map(({ step_number }) => step_number)).toEqual([48, 36, 24, 12]);
    expect(checkpoints[0]).toMatchObject({ fine_tuning_job_id: job.id, metrics: { step: 48 } });
    expect((await client.files.retrieve(done.result_files[0] ?? '')).purpose).toBe('fine-tune-results');
  });

  test('a job and its model have names that work here without any header', async () => {
    const plain = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    const job = await plain.fineTuning.jobs.create({ model: '@simulator/sim-small', training_file: training });
    expect(job.model).toBe('@simulator/sim-small');
    await isThere(job.id);
    train(20_000);
    const done = await reaches(job.id, 'succeeded');
    const model = done.fine_tuned_model ?? '';
    expect([done.model, model]).toEqual(['@simulator/sim-small', expect.stringMatching(/^@simulator\/ft:sim-small:/)]);
    const events = await collect(plain.fineTuning.jobs.listEvents(job.id));
    expect(events.map(({ message }) => message)).toContain(`New fine-tuned model created: ${model}`);
    const [checkpoint] = await collect(plain.fineTuning.jobs.checkpoints.list(job.id));
    expect(checkpoint?.fine_tuned_model_checkpoint).toBe(`${model}:ckpt-step-${checkpoint?.step_number}`);
    const messages = [{ role: 'user' as const, content: 'Hi' }];
    const answer = await plain.chat.completions.create({ model, messages });
    expect(answer.model).toBe(model.replace('@simulator/', ''));
    const batch = await runBatch(sdk, plain, [chatLine('a', { model })]);
    expect(batch.request_counts).toMatchObject({ completed: 1, failed: 0 });
  });

  test('a job is cancelled, another one paused and resumed', async () => {
    const [first, second] = [await create(), await create()];
    await Promise.all([isThere(first.id), isThere(second.id)]);
    train(3_000);
    await Promise.all([reaches(first.id, 'running'), reaches(second.id, 'running')]);
    await client.fineTuning.jobs.cancel(first.id);
    await client.fineTuning.jobs.pause(second.id);
    expect((await reaches(first.id, 'cancelled')).finished_at).toEqual(expect.any(Number));
    await reaches(second.id, 'paused');
    await client.fineTuning.jobs.resume(second.id);
    await reaches(second.id, 'queued');
    train(20_000);
    await reaches(second.id, 'succeeded');
    const error = await getFailureCode(client.fineTuning.jobs.cancel(second.id));
    expect(error).toBeInstanceOf(sdk.OpenAI.ConflictError);
    expect(sent.to(new RegExp(`POST .*${second.id}/cancel`))).toHaveLength(1);
  });

  test('jobs are listed newest first, by metadata, and by its absence', async () => {
    const tag = `${sdk.name}-${Date.now()}`;
    const tagged: string[] = [];
    for (const part of ['a', 'b', 'a', 'a']) tagged.push((await create({ metadata: { tag, part } })).id);
    const bare = await create();
    const idsOf = (query: Record<string, unknown>) =>
      collect(client.fineTuning.jobs.list(query as never)).then((jobs) => jobs.map(({ id }) => id));
    expect(await idsOf({ metadata: { tag }, limit: 1 })).toEqual(tagged.toReversed());
    expect(await idsOf({ metadata: { tag, part: 'a' }, limit: 2 })).toEqual([tagged[3], tagged[2], tagged[0]]);
    expect(await idsOf({ metadata: { tag: 'none such' } })).toEqual([]);
    for (const none of ['null', null]) {
      const without = await idsOf({ metadata: none, limit: 100 });
      expect([without[0], without.includes(tagged[0] ?? '')]).toEqual([bare.id, false]);
    }
    const all = await idsOf({ limit: 2 });
    expect(all.slice(0, 5)).toEqual([bare.id, ...tagged.toReversed()]);
    expect(new Set(all).size).toBe(all.length);
  });

  test('the same create call sent again makes one job', async () => {
    const headers = { 'Idempotency-Key': `ft-${sdk.name}` };
    const params = { model: 'sim-small', training_file: training, seed: 1 };
    const first = await client.fineTuning.jobs.create(params, { headers });
    expect((await client.fineTuning.jobs.create(params, { headers })).id).toBe(first.id);
    const changed = await getFailureCode(client.fineTuning.jobs.create({ ...params, seed: 2 }, { headers }));
    expect(changed.status).toBe(409);
    const again = { headers: { 'X-Stainless-Retry-Count': '1' } };
    const twice = { ...params, suffix: `retry-${sdk.name.replace(' ', '-')}` };
    const unkeyed = await client.fineTuning.jobs.create(twice);
    expect((await client.fineTuning.jobs.create(twice, again)).id).toBe(unkeyed.id);
  });

  test.for<[string, Record<string, unknown>, Record<string, unknown>]>([
    ['an unknown file', { training_file: 'file-none' }, { param: 'training_file', code: 'file_not_found' }],
    ['an unknown validation file', { validation_file: 'file-none' }, { param: 'validation_file' }],
    ['an unknown member', { mode: 'fast' }, { param: 'mode', code: 'unknown_parameter' }],
    ['no model', { model: undefined }, { param: 'model', code: 'missing_required_parameter' }],
    ['a suffix that is too long', { suffix: 'x'.repeat(65) }, { param: 'suffix', code: 'string_above_max_length' }],
    ['a seed out of bounds', { seed: 2 ** 31 }, { param: 'seed', code: 'integer_above_max_value' }],
    ['too many epochs', { hyperparameters: { n_epochs: 51 } }, { param: 'hyperparameters.n_epochs' }],
    ['an unknown method', { method: { type: 'magic' } }, { param: 'method.type' }],
    ['too much metadata', { metadata: { key: 'x'.repeat(513) } }, { param: 'metadata.key' }],
    [
      'six integrations',
      { integrations: Array.from({ length: 6 }, () => ({ type: 'wandb', wandb: { project: 'p' } })) },
      { param: 'integrations' },
    ],
    [
      'a grader that cannot be recorded',
      { method: { type: 'reinforcement', reinforcement: { grader: { type: 'g', name: '\0' } } } },
      { param: 'method.reinforcement.grader' },
    ],
  ])('%s is refused with 400 and its name', async ([, params, expected]) => {
    const error = await getFailureCode(create(params));
    expect(error).toBeInstanceOf(sdk.OpenAI.BadRequestError);
    expect(error).toMatchObject({ type: 'invalid_request_error', ...expected });
  });

  test('a file of another purpose and a provider that trains nothing are refused', async () => {
    const file = await sdk.toFile(Buffer.from('{}\n'), 'x.jsonl');
    const batch = await client.files.create({ file, purpose: 'batch' });
    expect(await getFailureCode(create({ training_file: batch.id }))).toMatchObject({
      status: 400,
      param: 'training_file',
      message: expect.stringContaining("purpose 'batch'"),
    });
    const headers = {
      'x-gateway-virtual-key': null,
      'x-gateway-api-key': platform.adminKey,
      authorization: 'Bearer own-key',
      'x-gateway-provider': 'groq',
    };
    const params = { model: 'x', training_file: training };
    expect(await getFailureCode(client.fineTuning.jobs.create(params, { headers }))).toMatchObject({
      status: 400,
      code: 'unsupported_operation',
      message: expect.stringContaining('groq'),
    });
    expect(
      await getFailureCode(client.fineTuning.jobs.create(params, { headers: { 'x-gateway-virtual-key': null } })),
    ).toMatchObject({
      status: 400,
      code: 'missing_credentials',
    });
  });

  test('unknown jobs, cursors and limits, and the jobs of another workspace', async () => {
    const job = await create();
    const stranger = new sdk.OpenAI({ apiKey: await createWorkspace(platform), baseURL: platform.baseUrl });
    for (const [who, id] of [
      [client, 'ftjob-none'],
      [stranger, job.id],
    ] as const) {
      const jobs = who.fineTuning.jobs;
      const calls = [
        () => jobs.retrieve(id),
        () => jobs.cancel(id),
        () => jobs.listEvents(id),
        () => jobs.checkpoints.list(id),
      ];
      for (const call of calls) {
        const error = await getFailureCode(call());
        expect(error).toBeInstanceOf(sdk.OpenAI.NotFoundError);
        expect(error.message).toContain(`Could not find fine tune: ${id}`);
      }
    }
    expect((await stranger.fineTuning.jobs.list()).data).toEqual([]);
    const { jobs } = client.fineTuning;
    const bad = [
      jobs.list({ after: 'ftjob-none' }),
      jobs.listEvents(job.id, { after: 'ftevent-none' }),
      jobs.checkpoints.list(job.id, { after: 'ftckpt_none' }),
      jobs.list({ limit: 0 }),
      jobs.listEvents(job.id, { limit: 101 }),
    ];
    const params = await Promise.all(bad.map(async (call) => (await getFailureCode(call)).param));
    expect(params).toEqual(['after', 'after', 'after', 'limit', 'limit']);
  });
});

test('a key that may only read reads, and the document and the metrics know of fine-tuning', async () => {
  const authorization = `Bearer ${platform.adminKey}`;
  const made = await fetch(`${platform.baseUrl}/api-keys`, {
    method: 'POST',
    headers: { authorization, 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'reader', scopes: ['fine_tuning.read'] }),
  });
  const { key } = (await made.json()) as { key: string };
  const call = (method: string, path: string) =>
    fetch(`${platform.baseUrl}/fine_tuning/jobs${path}`, { method, headers: { authorization: `Bearer ${key}` } });
  const list = await call('GET', '?limit=1');
  expect(Object.keys((await list.json()) as object)).toEqual(['object', 'data', 'has_more']);
  expect((await call('POST', '/ftjob-x/cancel')).status).toBe(403);
  expect((await call('POST', '')).status).toBe(403);
  const origin = platform.baseUrl.slice(0, -'/v1'.length);
  const metrics = await (await fetch(`${origin}/metrics`)).text();
  expect(metrics).toMatch(/sluice_fine_tuning_jobs\{status="succeeded"\} [1-9]/);
  const document = (await (await fetch(`${origin}/openapi.json`)).json()) as { paths: Record<string, object> };
  const paths = Object.keys(document.paths).filter((path) => path.includes('fine_tuning'));
  expect(paths).toHaveLength(7);
});
