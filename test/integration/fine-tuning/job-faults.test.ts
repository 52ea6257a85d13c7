import { spawn } from 'node:child_process';
import { expect, test, type TestContext } from 'vitest';
import { followQueue, startQueue } from '#libs/fine-tuning/fine-tuning-queues.ts';
import { eventually } from '#test/eventually.ts';
import { withQueue } from '#test/queue-jobs.ts';
import type { ProxiedCall, Verdict } from './provider-proxy.ts';
import { startTuningRig, type Json, type TuningRig } from './tuning-rig.ts';

/** Each test has a rig of its own, so that they run side by side: they wait for the queue to look again, most of their time. */
async function ownRig({ onTestFinished }: TestContext): Promise<TuningRig> {
  const rig = await startTuningRig();
  onTestFinished(() => rig.stop());
  return rig;
}

const isUpload = ({ method, path }: ProxiedCall) => method === 'POST' && path.endsWith('/files');
const isCreate = ({ method, path }: ProxiedCall) => method === 'POST' && path.endsWith('/jobs');
const isLook = ({ method, path }: ProxiedCall) => method === 'GET' && /\/jobs\/[^/?]+$/.test(path);
const isEvents = ({ path }: ProxiedCall) => path.includes('/events');
const isCheckpoints = ({ path }: ProxiedCall) => path.includes('/checkpoints');
const isResult = ({ path }: ProxiedCall) => path.endsWith('/content');
const isCancel = ({ path }: ProxiedCall) => path.endsWith('/cancel');

/** Judges the first call of a kind, and lets everything else pass. */
function once({ proxy }: TuningRig, is: (call: ProxiedCall) => boolean, verdict: () => Verdict | Promise<Verdict>) {
  let over = false;
  proxy.judge((call) => {
    if (over || !is(call)) return 'pass';
    over = true;
    return verdict();
  });
  return () => over;
}

const listAtProvider = async (rig: TuningRig, path: string) => (await rig.atProvider(path))['data'] as Json[];

/** Trains the job to its end; then there is one job at the provider, and each of its records is here once. */
async function endsOnce(rig: TuningRig, id: string, status = 'succeeded', files = 1): Promise<void> {
  await eventually(
    () => rig.events(id),
    (events) => events.some(({ message }) => String(message).startsWith('Created')),
    { timeoutMs: 50_000 },
  );
  rig.train(60_000);
  await rig.reaches(id, status);
  const jobs = await listAtProvider(rig, '/fine_tuning/jobs');
  expect(jobs).toHaveLength(1);
  expect(await listAtProvider(rig, '/files?purpose=fine-tune')).toHaveLength(files);
  const there = String(jobs[0]?.['id']);
  const provided = await listAtProvider(rig, `/fine_tuning/jobs/${there}/events?limit=100`);
  const events = (await rig.events(id)).filter(({ level }) => level !== 'warn');
  expect(events.map(({ created_at, data }) => [created_at, data])).toEqual(
    provided.map(({ created_at, data }) => [created_at, data]),
  );
  expect(new Set(events.map((event) => event['id'])).size).toBe(provided.length);
  const checkpoints = await rig.checkpoints(id);
  expect(checkpoints.map(({ step_number }) => step_number)).toEqual(
    (await listAtProvider(rig, `/fine_tuning/jobs/${there}/checkpoints`)).map(({ step_number }) => step_number),
  );
  const results = await rig.call('GET', '/files?purpose=fine-tune-results');
  expect((results.body['data'] as Json[]).map((file) => file['id'])).toEqual((await rig.job(id))['result_files']);
  expect(await rig.difference()).toBeNull();
}

test.concurrent('a worker that is killed in the middle of the create call loses and repeats nothing', async (context) => {
  const rig = await ownRig(context);
  const worker = spawn(process.execPath, ['apps/worker/main.ts'], {
    env: { ...process.env, ...rig.platform.environment, SLUICE_LOG_LEVEL: 'fatal' },
    stdio: 'ignore',
  });
  const killed = once(rig, isCreate, () => {
    worker.kill('SIGKILL');
    return 'lose-reply';
  });
  const id = await rig.begin();
  await eventually(killed, (over) => over);
  await rig.platform.startWorker();
  await endsOnce(rig, id);
});

/** Deletes the queue's job, and lets the fine-tuning job look unchanged for long enough that a worker misses it. */
async function loseJob({ platform }: TuningRig, id: string): Promise<void> {
  const { pool, connectionString } = platform.database;
  const deleted = await withQueue(connectionString, async (boss) => {
    let open = 0;
    for (const { name } of [startQueue, followQueue]) {
      const jobs = await boss.findJobs(name, { data: { job_id: id } });
      open += jobs.filter(({ completedOn }) => completedOn === null).length;
      for (const job of jobs) await boss.deleteJob(name, job.id);
    }
    return open;
  });
  expect(deleted).toBe(1);
  await pool.query(`update fine_tuning_job set updated_at = updated_at - interval '2 minutes' where id = $1`, [id]);
}

test.concurrent.for([
  ['after the upload', isUpload, 'lose-reply'],
  ['before the create call arrives', isCreate, 'reset'],
  ['after the create call', isCreate, 'lose-reply'],
] as const)(
  'a start that is lost with its worker %s is repeated, and makes nothing twice',
  async ([, is, verdict], context) => {
    const rig = await ownRig(context);
    const worker = await rig.platform.startWorker();
    let stopped: Promise<void> | undefined;
    once(rig, is, async () => {
      stopped = worker.stop();
      await stopped;
      return verdict;
    });
    const id = await rig.begin();
    await eventually(
      () => stopped !== undefined,
      (begun) => begun,
    );
    await stopped;
    await loseJob(rig, id);
    await rig.platform.startWorker();
    await endsOnce(rig, id);
  },
);

test.concurrent('a job that the provider has and no poll follows any more is followed again', async (context) => {
  const rig = await ownRig(context);
  const worker = await rig.platform.startWorker();
  const id = await rig.begin();
  await eventually(
    () => rig.events(id),
    (events) => events.length > 0,
  );
  await worker.stop();
  await loseJob(rig, id);
  await rig.platform.startWorker();
  await endsOnce(rig, id);
});

test.concurrent('the start waits for a provider that is unavailable or overloaded, and the job can be read all the time', async (context) => {
  const rig = await ownRig(context);
  let state: Verdict = 'reset';
  rig.proxy.judge(() => state);
  await rig.platform.startWorker();
  const id = await rig.begin();
  const [note] = await eventually(
    () => rig.events(id),
    (events) => events.length === 1,
  );
  expect(note).toMatchObject({ level: 'warn', message: expect.stringContaining('Sluice will retry') });
  state = { status: 429, body: { error: { message: 'slow down', type: 'requests', param: null, code: 'slow_down' } } };
  const seen = rig.proxy.calls.length;
  await eventually(
    () => rig.proxy.calls.length,
    (count) => count > seen + 1,
  );
  state = 'pass';
  await eventually(
    () => rig.events(id),
    (events) => events.length > 2,
  );
  state = 'reset';
  rig.train(60_000);
  const lost = rig.proxy.calls.length;
  await eventually(
    () => rig.proxy.calls.length,
    (count) => count > lost + 2,
  );
  expect((await rig.job(id))['status']).toBe('validating_files');
  await eventually(
    () => rig.events(id),
    ([newest]) => newest?.['level'] === 'warn' && String(newest['message']).includes('cannot return the job'),
  );
  state = 'pass';
  await endsOnce(rig, id);
});

test.concurrent.for([
  ['upload', isUpload],
  ['create call', isCreate],
] as const)('a lost reply to the %s makes nothing twice', async ([, is], context) => {
  const rig = await ownRig(context);
  await rig.platform.startWorker();
  once(rig, is, () => 'lose-reply');
  await endsOnce(rig, await rig.begin());
});

test.concurrent('a lost reply to the create call of a job with full metadata creates nothing twice', async (context) => {
  const rig = await ownRig(context);
  await rig.platform.startWorker();
  once(rig, isCreate, () => 'lose-reply');
  const metadata = Object.fromEntries(Array.from({ length: 16 }, (_value, index) => [`key-${index}`, 'x']));
  await endsOnce(rig, await rig.begin({ metadata }));
});

test.concurrent.for([
  ['before the upload arrives', isUpload, 'reset'],
  ['after the upload', isUpload, 'lose-reply'],
  ['before the create call arrives', isCreate, 'reset'],
  ['after the create call', isCreate, 'lose-reply'],
  ['while it looks at the job', isLook, 'reset'],
  ['while it reads events', isEvents, 'reset'],
  ['while it reads checkpoints', isCheckpoints, 'reset'],
  ['while it fetches the result file', isResult, 'reset'],
] as const)('a worker that is stopped %s loses and repeats nothing', async ([, is, verdict], context) => {
  const rig = await ownRig(context);
  const worker = await rig.platform.startWorker();
  let stopped: Promise<void> | undefined;
  once(rig, is, async () => {
    stopped = worker.stop();
    await stopped;
    return verdict;
  });
  const id = await rig.begin();
  if (is === isResult) {
    await eventually(
      () => rig.events(id),
      (events) => events.length >= 2,
    );
    rig.train(60_000);
  }
  await eventually(
    () => stopped !== undefined,
    (isStopping) => isStopping,
  );
  await stopped;
  await rig.platform.startWorker();
  await endsOnce(rig, id);
});

test.concurrent('a job that is cancelled while no create call was sent never reaches the provider', async (context) => {
  const rig = await ownRig(context);
  const id = await rig.begin();
  const cancelled = await rig.call('POST', `/fine_tuning/jobs/${id}/cancel`);
  expect(cancelled.body).toMatchObject({ status: 'cancelled', finished_at: expect.any(Number) });
  await rig.platform.startWorker();
  const other = await rig.begin();
  await endsOnce(rig, other);
  expect(await rig.events(id)).toEqual([]);
});

test.concurrent('a job that is cancelled while its create call is lost is found at the provider and cancelled there', async (context) => {
  const rig = await ownRig(context);
  await rig.platform.startWorker();
  let cancelled = false;
  rig.proxy.judge((call) => {
    if (isCreate(call)) return 'lose-reply';
    return cancelled || isUpload(call) ? 'pass' : 'reset';
  });
  const id = await rig.begin();
  await eventually(
    () => rig.proxy.calls.some(isCreate),
    (created) => created,
  );
  expect((await rig.call('POST', `/fine_tuning/jobs/${id}/cancel`)).body['status']).toBe('validating_files');
  cancelled = true;
  await rig.reaches(id, 'cancelled');
  const jobs = await listAtProvider(rig, '/fine_tuning/jobs');
  expect(jobs.map(({ status }) => status)).toEqual(['cancelled']);
  expect(rig.proxy.calls.filter(isCancel)).toHaveLength(1);
});
