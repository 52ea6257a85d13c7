import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { examples, startTuningRig, type Json, type TuningRig } from './tuning-rig.ts';

let rig: TuningRig;
beforeAll(async () => {
  rig = await startTuningRig();
  await rig.platform.startWorker();
});
afterAll(() => rig.stop());

const idsOf = (records: Json[]) => records.map(({ id }) => id);

test('a job is trained at the provider and everything of it can be read here', async () => {
  const validation = await rig.upload(examples(10));
  const training = await rig.upload(examples(10));
  const id = await rig.begin({
    training_file: training,
    validation_file: validation,
    suffix: 'mine',
    seed: 7,
    metadata: { team: 'a' },
    hyperparameters: { n_epochs: 2 },
  });
  expect(await rig.job(id)).toEqual({
    id,
    object: 'fine_tuning.job',
    created_at: expect.any(Number),
    error: null,
    estimated_finish: null,
    fine_tuned_model: null,
    finished_at: null,
    hyperparameters: { batch_size: 'auto', learning_rate_multiplier: 'auto', n_epochs: 2 },
    integrations: null,
    metadata: { team: 'a' },
    method: {
      type: 'supervised',
      supervised: { hyperparameters: { batch_size: 'auto', learning_rate_multiplier: 'auto', n_epochs: 2 } },
    },
    model: 'sim-small',
    organization_id: expect.stringMatching(/^ws_/),
    result_files: [],
    seed: 7,
    status: 'validating_files',
    trained_tokens: null,
    training_file: training,
    user_provided_suffix: 'mine',
    validation_file: validation,
  });
  await eventually(
    () => rig.events(id),
    (events) => events.length >= 2,
  );
  rig.train(2_500);
  expect(await rig.reaches(id, 'running')).toMatchObject({ hyperparameters: { n_epochs: 2, batch_size: 1 } });
  rig.train(8_000);
  const done = await rig.reaches(id, 'succeeded');
  const [there] = (await rig.atProvider('/fine_tuning/jobs'))['data'] as [Json];
  expect(there).toMatchObject({ seed: 7, metadata: { team: 'a', sluice_job_id: id } });
  expect(done).toMatchObject({
    fine_tuned_model: `@tuner/${String(there['fine_tuned_model'])}`,
    trained_tokens: there['trained_tokens'],
    finished_at: there['finished_at'],
    estimated_finish: null,
    error: null,
    seed: 7,
    metadata: { team: 'a' },
  });

  const events = await rig.events(id);
  const provided = (await rig.atProvider(`/fine_tuning/jobs/${String(there['id'])}/events?limit=100`))[
    'data'
  ] as Json[];
  expect(events.length).toBe(provided.length);
  expect(new Set(idsOf(events)).size).toBe(events.length);
  expect(events[0]).toEqual({
    id: expect.stringMatching(/^ftevent-[0-9a-f]{32}$/),
    object: 'fine_tuning.job.event',
    created_at: provided[0]?.['created_at'],
    level: 'info',
    message: 'The job has successfully completed',
    type: 'message',
    data: {},
  });
  expect(events.at(-1)?.['message']).toBe(`Created fine-tuning job: ${id}`);
  expect(events.at(-2)?.['message']).toBe(`Validating training file: ${training} and validation file: ${validation}`);
  expect(events.slice(0, -2).map(({ message, data }) => [message, data])).toEqual(
    provided.slice(0, -2).map(({ message, data }) => [String(message).replace(' ft:', ' @tuner/ft:'), data]),
  );

  const checkpoints = await rig.checkpoints(id);
  expect(checkpoints.map(({ step_number }) => step_number)).toEqual([20, 10]);
  expect(checkpoints[0]).toEqual({
    id: expect.stringMatching(/^ftckpt_[0-9a-f]{32}$/),
    object: 'fine_tuning.job.checkpoint',
    created_at: expect.any(Number),
    fine_tuned_model_checkpoint: expect.stringContaining(':ckpt-step-20'),
    fine_tuning_job_id: id,
    metrics: expect.objectContaining({ step: 20, train_loss: expect.any(Number), valid_loss: expect.any(Number) }),
    step_number: 20,
  });

  const [resultFile] = done['result_files'] as string[];
  expect((await rig.call('GET', `/files/${resultFile}`)).body).toMatchObject({
    purpose: 'fine-tune-results',
    filename: `${id}-results.csv`,
  });
  const content = await fetch(`${rig.platform.baseUrl}/files/${resultFile}/content`, {
    headers: { authorization: `Bearer ${rig.platform.adminKey}` },
  });
  expect(Buffer.from(await content.text(), 'base64').toString()).toMatch(/^step,train_loss/);
  expect([rig.proxy.count('POST', /\/files$/), rig.proxy.count('POST', /\/jobs$/)]).toEqual([2, 1]);
  const files = (await rig.atProvider('/files?purpose=fine-tune'))['data'] as Json[];
  expect(files.map(({ filename }) => String(filename)).toSorted()).toEqual([
    `${id}-training.jsonl`,
    `${id}-validation.jsonl`,
  ]);
  expect(await rig.difference()).toBeNull();
});
