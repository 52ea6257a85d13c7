import { Portkey } from 'portkey-ai';
import { expect, inject, onTestFinished, test } from 'vitest';
import { reconcileJobs } from '#apps/cli/restore/restore.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform } from '#test/platform.ts';
import { deleteJobs } from '#test/queue-jobs.ts';
import { chatLines, createBatch, ended } from '../../api/batch-kit.ts';
import { sdk, sqlOn } from './installation.ts';

const example = {
  messages: [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello there' },
  ],
};

const headers = { authorization: 'Bearer any' };

/** Does at the provider what a worker does that starts the fine-tuning job with this id. */
async function startAtProvider(url: string, id: string): Promise<void> {
  const form = new FormData();
  form.set('purpose', 'fine-tune');
  form.set('file', new File([`${JSON.stringify(example)}\n`.repeat(12)], `${id}-training.jsonl`));
  const file = (await (await fetch(`${url}/files`, { method: 'POST', headers, body: form })).json()) as { id: string };
  const { status } = await fetch(`${url}/fine_tuning/jobs`, {
    method: 'POST',
    headers: { ...headers, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'sim-small', training_file: file.id, metadata: { sluice_job_id: id } }),
  });
  expect(status).toBe(200);
}

test('open work of every kind gets the jobs that a backup does not have, once, and turns of what is over go', async () => {
  let nowMs = Date.now();
  const environment = { SLUICE_FINE_TUNING_POLL_MIN: '10ms', SLUICE_FINE_TUNING_POLL_MAX: '200ms' };
  const platform = await startPlatform({ worker: false, environment, simulator: { clock: { now: () => nowMs } } });
  onTestFinished(() => platform.stop());
  const { adminKey: apiKey, baseUrl: baseURL } = platform;
  const client = new sdk.OpenAI({ apiKey, baseURL, defaultHeaders: { 'x-gateway-virtual-key': 'simulator' } });
  const { db, connectionString, pool } = platform.database;
  const createJob = async () => {
    const text = `${JSON.stringify(example)}\n`.repeat(12);
    const file = await sdk.toFile(Buffer.from(text), 'train.jsonl');
    const training_file = (await client.files.create({ file, purpose: 'fine-tune' })).id;
    return await client.fineTuning.jobs.create({ model: 'sim-small', training_file });
  };
  // A job that its provider has accepted, and what no worker has begun with.
  const accepted = await createJob();
  const worker = await platform.startWorker();
  await eventually(
    () => pool.query('select from fine_tuning_job where provider_job_id is not null'),
    ({ rowCount }) => rowCount === 1,
  );
  const over = await ended(client, await createBatch(sdk, client, chatLines(1)));
  await worker.stop();
  const created = await createJob();
  const batch = await createBatch(sdk, client, chatLines(2));
  const logs = new Portkey({ apiKey, baseURL }).logs.exports;
  const exportId = (await logs.create({ requestedData: ['id'], filters: {} })).id ?? '';
  await logs.start({ exportId });

  await deleteJobs(connectionString);
  // A turn of a batch that is over, and none of one that is open.
  await pool.query('update batch_turn set batch_id = $1 where batch_id = $2', [over.id, batch.id]);
  const waiting = await createJob();
  // What workers sent in the time that is lost: a job whose start the backup does not have, and one whose start it has.
  for (const { id } of [created, waiting]) await startAtProvider(platform.simulatorUrl, id);
  // A restore starts an epoch, after which the processes of before would exit. Here, the log becomes that of an older one.
  const { adminUrl } = inject('postgres');
  const asAdmin = new URL(new URL(connectionString).pathname, adminUrl).href;
  await sqlOn(asAdmin, `set session_replication_role = replica; update event set epoch = -1`);
  const logger = createLogger({ name: 'test', level: 'silent' });
  const nothing = { held: 0, turns: 0, fineTuningJobs: 0, logExports: 0 };
  expect(await reconcileJobs({ db, connectionString, logger })).toEqual({
    ...nothing,
    turns: 2,
    fineTuningJobs: 2,
    logExports: 1,
  });
  expect(await reconcileJobs({ db, connectionString, logger })).toEqual(nothing);

  await platform.startWorker();
  expect(await ended(client, batch)).toMatchObject({ status: 'completed', request_counts: { completed: 2 } });
  await eventually(
    () => pool.query('select from fine_tuning_job where provider_job_id is not null'),
    ({ rowCount }) => rowCount === 3,
  );
  nowMs += 60_000;
  for (const { id } of [accepted, created, waiting]) {
    await eventually(
      () => client.fineTuning.jobs.retrieve(id),
      ({ status }) => status === 'succeeded',
    );
  }
  for (const list of ['fine_tuning/jobs', 'files?purpose=fine-tune']) {
    const there = await (await fetch(`${platform.simulatorUrl}/${list}`, { headers })).json();
    expect(there).toMatchObject({ data: Array(3).fill(expect.anything()), has_more: false });
  }
  await eventually(
    () => logs.retrieve({ exportId }),
    ({ status }) => status === 'success',
  );
});
