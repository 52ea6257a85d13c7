import { expect, test } from 'vitest';
import { startTestSimulator, type Json } from '../../start-test-simulator.ts';

let nowMs = 1_760_000_000_000;
const { url, openai, post } = await startTestSimulator({ clock: { now: () => nowMs }, trainingMs: 10_000 });
const example = {
  messages: [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello there' },
  ],
};
const lines = (count: number) => Array.from({ length: count }, () => JSON.stringify(example)).join('\n');

const upload = (text: string, name = 'train.jsonl') =>
  openai.files.create({ file: new File([text], name), purpose: 'fine-tune' });
const begin = async (fields: Json = {}, text = lines(10)) =>
  openai.fineTuning.jobs.create({ model: 'gpt-4o-mini', training_file: (await upload(text)).id, ...fields });
const retrieve = (id: string) => openai.fineTuning.jobs.retrieve(id);
const messagesOf = async (id: string) =>
  (await openai.fineTuning.jobs.listEvents(id, { limit: 1_000 })).data.map(({ message }) => message).reverse();

test('a job goes from validation to a model, with falling losses, checkpoints and a file of results', async () => {
  const job = await begin({ suffix: 'mine', metadata: { team: 'a' } });
  expect(job).toMatchObject({
    object: 'fine_tuning.job',
    status: 'validating_files',
    hyperparameters: { n_epochs: 'auto' },
    trained_tokens: null,
    finished_at: null,
    metadata: { team: 'a' },
  });
  nowMs += 1_500;
  expect(await retrieve(job.id)).toMatchObject({ status: 'queued', hyperparameters: { n_epochs: 3, batch_size: 1 } });
  nowMs += 1_000;
  const running = await retrieve(job.id);
  expect(running).toMatchObject({ status: 'running', fine_tuned_model: null });
  expect(running.estimated_finish).toBe(job.created_at + 10);
  nowMs += 8_000;
  const done = await retrieve(job.id);
  expect(done).toMatchObject({
    status: 'succeeded',
    fine_tuned_model: expect.stringMatching(/^ft:gpt-4o-mini:sluice-simulator:mine:[0-9a-f]{8}$/),
    finished_at: job.created_at + 10,
    trained_tokens: expect.any(Number),
    error: null,
  });
  const results = await (await openai.files.content(done.result_files[0] ?? '')).text();
  expect(Buffer.from(results, 'base64').toString()).toMatch(/^step,train_loss/);

  const { data: events } = await openai.fineTuning.jobs.listEvents(job.id, { limit: 100 });
  expect(events[0]?.message).toBe('The job has successfully completed');
  const metrics = events
    .filter(({ type }) => type === 'metrics')
    .map(({ data }) => data as { step: number; train_loss: number });
  expect(metrics[0]).toMatchObject({ step: 30, total_steps: 30 });
  const losses = metrics.map(({ train_loss }) => train_loss).reverse();
  expect(losses).toEqual([...new Set(losses)].sort((a, b) => b - a));
  expect(losses.length).toBe(30);
  const { data: checkpoints } = await openai.fineTuning.jobs.checkpoints.list(job.id);
  expect(checkpoints.map(({ step_number }) => step_number)).toEqual([30, 20, 10]);
  expect(checkpoints[0]).toMatchObject({
    object: 'fine_tuning.job.checkpoint',
    fine_tuning_job_id: job.id,
    metrics: { step: 30 },
  });
});

test('the same job learns the same way, under ids of its own', async () => {
  const ids = [(await begin()).id, (await begin()).id];
  nowMs += 11_000;
  const [first, second] = [await messagesOf(ids[0] ?? ''), await messagesOf(ids[1] ?? '')];
  const steps = (messages: string[]) => messages.filter((message) => message.startsWith('Step'));
  expect(steps(first)).toEqual(steps(second));
  const models = await Promise.all(ids.map((id) => retrieve(id)));
  expect(models[0]?.fine_tuned_model).not.toBe(models[1]?.fine_tuned_model);
});

test.for<[string, string]>([
  ['{"messages":[]}\n', 'Line 1, key "messages" must be a non-empty array'],
  ['{"messages":[{"role":"user","content":"x"}]}\n', 'at least one message must be from the assistant'],
  ['no json\n', 'Line 1 is not valid JSON'],
  [lines(3), 'has 3 example(s), but must have at least 10'],
])('a bad training file fails the job: %j', async ([text, problem]) => {
  const job = await begin({}, text);
  nowMs += 2_000;
  const failed = await retrieve(job.id);
  expect(failed).toMatchObject({
    status: 'failed',
    error: { code: 'invalid_training_file', param: 'training_file', message: expect.stringContaining(problem) },
    finished_at: job.created_at + 1,
  });
  const { data } = await openai.fineTuning.jobs.listEvents(job.id);
  expect(data[0]).toMatchObject({ level: 'error', message: expect.stringContaining(problem) });
});

test('sim-tune-fail fails in the middle of training', async () => {
  const job = await begin({ model: 'sim-tune-fail' });
  nowMs += 7_000;
  expect(await retrieve(job.id)).toMatchObject({
    status: 'failed',
    error: { code: 'server_error' },
    trained_tokens: null,
  });
  expect((await messagesOf(job.id)).some((message) => message.startsWith('Step'))).toBe(true);
});

test('a job is paused, resumed through the queue and cancelled, and only where that makes sense', async () => {
  const job = await begin();
  await expect(openai.fineTuning.jobs.pause(job.id)).rejects.toMatchObject({ status: 400 });
  nowMs += 5_000;
  expect(await openai.fineTuning.jobs.pause(job.id)).toMatchObject({ status: 'paused' });
  const before = (await messagesOf(job.id)).length;
  nowMs += 60_000;
  expect((await messagesOf(job.id)).length).toBe(before);
  expect(await openai.fineTuning.jobs.resume(job.id)).toMatchObject({ status: 'queued' });
  nowMs += 1_000;
  expect(await retrieve(job.id)).toMatchObject({ status: 'running' });
  expect(await openai.fineTuning.jobs.cancel(job.id)).toMatchObject({
    status: 'cancelled',
    finished_at: Math.floor(nowMs / 1_000),
  });
  await expect(openai.fineTuning.jobs.cancel(job.id)).rejects.toMatchObject({ status: 400 });
  nowMs += 60_000;
  expect(await retrieve(job.id)).toMatchObject({ status: 'cancelled', fine_tuned_model: null });
});

test('the model’s name or a header sets how long a job takes', async () => {
  const quick = await begin({ model: 'gpt-4o-mini+training:100ms' });
  nowMs += 100;
  expect(await retrieve(quick.id)).toMatchObject({ status: 'succeeded' });
  const body = { model: 'm', training_file: (await upload(lines(10))).id };
  const response = await post('/v1/fine_tuning/jobs', body, { 'x-simulator-training': '50ms' });
  nowMs += 50;
  expect(await retrieve(((await response.json()) as { id: string }).id)).toMatchObject({ status: 'succeeded' });
});

test('jobs are listed newest first in pages, by metadata, and validation adds its loss', async () => {
  const made: string[] = [];
  for (let index = 0; index < 3; index++) made.unshift((await begin({ metadata: { list: 'this' } })).id);
  const listed: string[] = [];
  for await (const { id } of openai.fineTuning.jobs.list({ limit: 2, metadata: { list: 'this' } })) listed.push(id);
  expect(listed).toEqual(made);
  const validated = await begin({ validation_file: (await upload(lines(12))).id });
  nowMs += 11_000;
  expect((await messagesOf(validated.id)).at(-4)).toMatch(
    /^Step 30\/30: training loss=\d\.\d\d, validation loss=\d\.\d\d$/,
  );
});

test('a fault in the model’s name strikes before a job exists', async () => {
  const count = async () => (await openai.fineTuning.jobs.list({ limit: 100 })).data.length;
  const before = await count();
  const body = { model: 'sim-fault-503-then-ok-1', training_file: (await upload(lines(10))).id };
  expect((await post('/v1/fine_tuning/jobs', body)).status).toBe(503);
  expect(await count()).toBe(before);
  expect((await post('/v1/fine_tuning/jobs', body)).status).toBe(200);
  expect(await count()).toBe(before + 1);
});

test('files are stored, listed, read back and deleted', async () => {
  const text = 'naïve 🙂\n';
  const file = await upload(text, 'näme.jsonl');
  expect(file).toMatchObject({
    object: 'file',
    filename: 'näme.jsonl',
    bytes: Buffer.byteLength(text),
    status: 'processed',
  });
  expect(await (await openai.files.content(file.id)).text()).toBe(text);
  expect((await openai.files.list({ purpose: 'fine-tune', limit: 1 })).data).toEqual([file]);
  expect(await openai.files.delete(file.id)).toEqual({ id: file.id, object: 'file', deleted: true });
  await expect(openai.files.retrieve(file.id)).rejects.toMatchObject({
    status: 404,
    message: expect.stringContaining('No such File object'),
  });
});

test.for<[string, Json, Json]>([
  ['no model', { model: undefined }, { param: 'model', code: 'missing_required_parameter' }],
  ['an unknown file', { training_file: 'file-x' }, { param: 'training_file', code: null }],
  ['an unknown member', { foo: 1 }, { param: 'foo', code: 'unknown_parameter' }],
  [
    'too many epochs',
    { hyperparameters: { n_epochs: 51 } },
    { param: 'hyperparameters.n_epochs', code: 'invalid_value' },
  ],
])('%s is refused', async ([, fields, expected]) => {
  const body = { model: 'm', training_file: (await upload(lines(10))).id, ...fields };
  const response = await post('/v1/fine_tuning/jobs', body);
  expect(response.status).toBe(400);
  expect(await response.json()).toEqual({
    error: { message: expect.any(String), type: 'invalid_request_error', ...expected },
  });
  const unknown = await fetch(`${url}/v1/fine_tuning/jobs/ftjob-x`, { headers: { authorization: 'Bearer k' } });
  expect(unknown.status).toBe(404);
});
