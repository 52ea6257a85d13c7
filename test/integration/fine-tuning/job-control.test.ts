import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { examples, startTuningRig, type Json, type TuningRig } from './tuning-rig.ts';

let rig: TuningRig;
beforeAll(async () => {
  rig = await startTuningRig();
  await rig.platform.startWorker();
});
afterAll(() => rig.stop());
beforeEach(() => rig.proxy.judge(() => 'pass'));

const control = (id: string, verb: string) => rig.call('POST', `/fine_tuning/jobs/${id}/${verb}`);
const messagesOf = async (id: string) => (await rig.events(id)).map(({ message }) => message);
const providerJobOf = async (id: string): Promise<Json> => {
  const { data } = (await rig.atProvider(`/fine_tuning/jobs?metadata[sluice_job_id]=${id}`)) as { data: [Json] };
  return data[0];
};
const getSecrets = (id: string) =>
  rig.platform.database.db.selectFrom('secret').select('id').where('owner_id', '=', id).execute();

test('a running job is cancelled at the provider, and the key that it was created with is wiped with its end', async () => {
  const own = {
    'x-gateway-api-key': rig.platform.adminKey,
    authorization: 'Bearer my-own-provider-key',
    'x-gateway-provider': 'openai',
    'x-gateway-custom-host': rig.proxy.url,
  };
  const id = await rig.begin({ metadata: null }, own);
  expect(await getSecrets(id)).toHaveLength(1);
  await eventually(
    () => rig.events(id),
    (events) => events.length >= 2,
  );
  rig.train(3_000);
  await rig.reaches(id, 'running');
  expect((await control(id, 'cancel')).status).toBe(200);
  expect((await control(id, 'cancel')).status).toBe(200);
  const done = await rig.reaches(id, 'cancelled');
  expect(done).toMatchObject({ finished_at: expect.any(Number), error: null, fine_tuned_model: null, metadata: null });
  expect((await messagesOf(id))[0]).toBe('Fine-tuning job cancelled');
  expect((await providerJobOf(id))['status']).toBe('cancelled');
  expect(await getSecrets(id)).toEqual([]);
  const keys = new Set(rig.proxy.calls.map(({ authorization }) => authorization));
  expect(keys).toEqual(new Set(['Bearer my-own-provider-key']));
  const log = await rig.platform.database.pool.query('select data::text from event where stream_id = $1', [id]);
  expect(JSON.stringify(log.rows)).not.toContain('my-own-provider-key');

  expect((await control(id, 'cancel')).status).toBe(200);
  const late = await control(id, 'pause');
  expect([late.status, late.headers.get('x-should-retry')]).toEqual([409, 'false']);
  expect(late.body).toEqual({
    error: {
      message: "Cannot pause a fine-tuning job that has the status 'cancelled'.",
      type: 'invalid_request_error',
      param: null,
      code: null,
    },
  });
  expect(await rig.difference()).toBeNull();
});

test('a paused job makes no progress until it is resumed, and then goes on to its end', async () => {
  const id = await rig.begin();
  await eventually(
    () => rig.events(id),
    (events) => events.length >= 2,
  );
  rig.train(3_000);
  await rig.reaches(id, 'running');
  expect((await control(id, 'resume')).status).toBe(409);
  expect((await control(id, 'pause')).status).toBe(200);
  await rig.reaches(id, 'paused');
  rig.train(60_000);
  expect((await control(id, 'pause')).status).toBe(200);
  expect((await control(id, 'resume')).status).toBe(200);
  await rig.reaches(id, 'queued');
  rig.train(60_000);
  await rig.reaches(id, 'succeeded');
  const messages = await messagesOf(id);
  expect(messages.filter((message) => /paused|resumed/.test(String(message)))).toEqual([
    'Fine-tuning job resumed',
    'Fine-tuning job paused',
  ]);
  expect((await rig.events(id)).filter(({ level }) => level === 'warn')).toEqual([]);
  expect(await rig.difference()).toBeNull();
});

test('a request that the provider refuses becomes an event, and the job goes on', async () => {
  const id = await rig.begin();
  await eventually(
    () => rig.events(id),
    (events) => events.length >= 2,
  );
  rig.train(1_500);
  await rig.reaches(id, 'queued');
  expect((await control(id, 'pause')).status).toBe(200);
  const [refusal] = await eventually(
    () => rig.events(id),
    ([newest]) => newest?.['level'] === 'warn',
  );
  expect(refusal?.['message']).toContain('The provider refused to pause the job: Cannot pause job');
  rig.train(20_000);
  await rig.reaches(id, 'succeeded');
  expect(new Set((await rig.events(id)).map((event) => event['id'])).size).toBe((await rig.events(id)).length);
});

test('a job that fails in training says why', async () => {
  const id = await rig.begin({ model: '@tuner/sim-tune-fail' }, {});
  await eventually(
    () => rig.events(id),
    (events) => events.length >= 2,
  );
  rig.train(20_000);
  const failed = await rig.reaches(id, 'failed');
  expect(failed).toMatchObject({
    model: '@tuner/sim-tune-fail',
    error: { code: 'server_error', message: 'The job failed due to an internal error.', param: null },
    finished_at: expect.any(Number),
    fine_tuned_model: null,
    result_files: [],
  });
  expect((await rig.events(id))[0]).toMatchObject({
    level: 'error',
    message: 'The job failed due to an internal error.',
  });
});

test('a file in which the provider finds no training data fails the job', async () => {
  const id = await rig.begin({ training_file: await rig.upload('{"messages":[]}\n') });
  await eventually(
    () => rig.events(id),
    (events) => events.length >= 2,
  );
  rig.train(20_000);
  expect(await rig.reaches(id, 'failed')).toMatchObject({
    error: { code: 'invalid_training_file', param: 'training_file' },
  });
});

test('a job that the provider rejects fails once, with the message of the provider', async () => {
  const error = {
    message: 'Model sim-x is not available for fine-tuning.',
    type: 'invalid_request_error',
    param: 'model',
  };
  rig.proxy.judge(({ method, path }) =>
    method === 'POST' && path.endsWith('/jobs') ? { status: 400, body: { error: { ...error, code: null } } } : 'pass',
  );
  const before = rig.proxy.count('POST', /\/jobs$/);
  const id = await rig.begin({ model: 'sim-x' });
  expect(await rig.reaches(id, 'failed')).toMatchObject({
    error: { code: 'invalid_request_error', message: error.message, param: 'model' },
    finished_at: expect.any(Number),
  });
  expect(rig.proxy.count('POST', /\/jobs$/) - before).toBe(1);
});

test('a job whose virtual key is deleted fails, because it cannot be polled any more', async () => {
  const custom_host = rig.proxy.url;
  await rig.call('POST', '/virtual-keys', {
    name: 'brief',
    slug: 'brief',
    provider: 'openai',
    key: 'sk-brief-key',
    custom_host,
  });
  const id = await rig.begin({}, { 'x-gateway-virtual-key': 'brief' });
  await eventually(
    () => rig.events(id),
    (events) => events.length >= 2,
  );
  await rig.call('DELETE', '/virtual-keys/brief');
  expect(await rig.reaches(id, 'failed')).toMatchObject({
    error: { code: 'virtual_key_deleted', message: expect.stringContaining('this fine-tuning job') },
  });
});

test('a deleted training file stays readable for the job until the provider has it', async () => {
  const training = await rig.upload(examples(10));
  rig.proxy.judge(() => 'reset');
  const id = await rig.begin({ training_file: training });
  expect((await rig.call('DELETE', `/files/${training}`)).status).toBe(200);
  rig.proxy.judge(() => 'pass');
  await eventually(
    () => rig.events(id),
    (events) => events.some(({ message }) => String(message).startsWith('Created')),
  );
  rig.train(20_000);
  await rig.reaches(id, 'succeeded');
});
