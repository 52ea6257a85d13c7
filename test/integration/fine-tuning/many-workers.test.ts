import { plainLeaf } from '#libs/calls/plan/plain-plan.ts';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { fineTuningJobModel } from '#libs/fine-tuning/fine-tuning-job-model.ts';
import { listRecordedEvents } from '#libs/fine-tuning/fine-tuning-records.ts';
import { followJob } from '#libs/fine-tuning/follow-job.ts';
import { firstPoll, firstStart } from '#libs/fine-tuning/fine-tuning-queues.ts';
import { readProviderJob } from '#libs/fine-tuning/read-provider-job.ts';
import { startJob, type TuningWork } from '#libs/fine-tuning/start-job.ts';
import { TuningProvider } from '#libs/fine-tuning/tuning-provider.ts';
import { systemClock } from '#libs/kernel/clock.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { eventually } from '#test/eventually.ts';
import type { Verdict } from './provider-proxy.ts';
import { startTuningRig, type Json, type TuningRig } from './tuning-rig.ts';

// What the queue prevents as long as its claims hold: two workers with one job. Here the handlers are called by hand.

let rig: TuningRig;
beforeEach(async () => {
  rig = await startTuningRig();
});
afterEach(() => rig.stop());

const { signal } = new AbortController();
const claim = { id: '00000000-0000-4000-8000-000000000001', signal, retryCount: 0 };

function workOf({ platform }: TuningRig, connect?: TuningWork['connect']): TuningWork {
  const { db, eventLog, queue, access, calls } = platform.api.platform;
  return {
    db,
    eventLog,
    // Every claim is believed in, and nothing goes back into the queue.
    queue: { ...queue, holds: async () => true, complete: async () => false },
    logger: createLogger({ name: 'test', level: 'silent' }),
    connect:
      connect ??
      (async (job) => {
        const { target } = await access.fineTuningTargets.resolveLeaf(
          job.workspace_id,
          job.target,
          plainLeaf,
          null,
          false,
        );
        return new TuningProvider(calls, target, { signal, now: Date.now });
      }),
    releaseTarget: async () => {},
    nextWaitMs: () => ({ allowedMs: 10, waitMs: 10 }),
  };
}

test('when two workers create the same job at the same moment, one wins and the surplus job is cancelled', async () => {
  const { files, blobs } = rig.platform.api.platform;
  let creates = 0;
  rig.proxy.judge(async ({ method, path }): Promise<Verdict> => {
    if (method !== 'POST' || !path.endsWith('/jobs')) return 'pass';
    creates += 1;
    // Neither is answered before both have asked.
    await eventually(
      () => creates,
      (count) => count === 2,
    );
    return 'pass';
  });
  const id = await rig.begin();
  const deps = {
    ...workOf(rig),
    clock: systemClock,
    startWindowMs: 60_000,
    async openFile(workspaceId: string, fileId: string) {
      const file = await files.retrieve(workspaceId, fileId);
      return { sizeBytes: file.bytes, open: () => blobs.read(file.blob) };
    },
  };
  const start = () => startJob(deps, { ...claim, payload: firstStart(id) }, signal);
  await Promise.all([start(), start()]);
  const jobs = (await rig.atProvider('/fine_tuning/jobs'))['data'] as Json[];
  expect(jobs.map(({ status }) => String(status)).toSorted()).toEqual(['cancelled', 'validating_files']);
  const { db } = rig.platform.database;
  const row = await db.selectFrom('fine_tuning_job').selectAll().where('id', '=', id).executeTakeFirstOrThrow();
  expect(row.provider_job_id).toBe(jobs.find(({ status }) => status !== 'cancelled')?.['id']);
});

test('a job with more events than one poll keeps is recorded completely, in order and once, by any number of workers', async () => {
  const count = 7_300;
  const id = await rig.begin();
  const { blobs } = rig.platform.api.platform;
  const made = Array.from({ length: count }, (_value, index) => ({
    id: `ftevent-${index}`,
    created_at: 1_700_000_000 + Math.floor(index / 10),
    level: 'info',
    message: `Step ${index}`,
    type: 'message',
    data: null,
  })).toReversed();
  const job = readProviderJob({ id: 'ftjob-there', status: 'succeeded', fine_tuned_model: 'ft:x' });
  if (!job) throw new Error('not a job');
  const provider = {
    retrieveJob: async () => job,
    async *pagesOf(_id: string, list: string) {
      if (list === 'events') for (let from = 0; from < count; from += 100) yield made.slice(from, from + 100);
    },
  } as unknown as TuningProvider;
  const work = workOf(rig, async () => provider);
  await work.eventLog.transact(
    { workspaceId: 'any', streams: [id], metadata: { actor: { type: 'system', id: 'test' } } },
    async (unit) => {
      await unit.append(fineTuningJobModel, id, [
        {
          type: 'fine_tuning_job.files_uploaded',
          data: { provider_training_file_id: 'file-there', provider_validation_file_id: null },
        },
        { type: 'fine_tuning_job.provider_accepted', data: { provider_job_id: 'ftjob-there' } },
      ]);
    },
  );
  const deps = { ...work, blobs, recordFile: async () => {}, recordModels: async () => {} };
  const look = () => followJob(deps, { ...claim, payload: firstPoll(id, null) }, signal);
  await look();
  // Not all of them could be held, so it is not yet said to be over.
  expect((await rig.job(id))['status']).toBe('validating_files');
  await Promise.all([look(), look()]);
  expect(await rig.job(id)).toMatchObject({ status: 'succeeded', fine_tuned_model: '@tuner/ft:x' });
  const { db } = rig.platform.database;
  const recorded = await listRecordedEvents(db, id, { after: null, limit: 10_000 });
  expect(recorded.map(({ message }) => message)).toEqual(made.map(({ message }) => message));
  expect(await rig.difference()).toBeNull();
});
