import { expect, test } from 'vitest';
import { startTestSimulator, type Json } from '#test/test-simulator.ts';

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

test('a fault in the model’s name strikes before a job exists', async () => {
  const count = async () => (await openai.fineTuning.jobs.list({ limit: 100 })).data.length;
  const before = await count();
  const body = { model: 'sim-fault-503-then-ok-1', training_file: (await upload(lines(10))).id };
  expect((await post('/v1/fine_tuning/jobs', body)).status).toBe(503);
  expect(await count()).toBe(before);
  expect((await post('/v1/fine_tuning/jobs', body)).status).toBe(200);
  expect(await count()).toBe(before + 1);
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
