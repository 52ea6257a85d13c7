import { expect, test } from 'vitest';
import { readProviderCheckpoint, readProviderEvent, readProviderJob, toView } from './read-provider-job.ts';

const same = (text: string): string => text;

test('a job without most members is read, with nulls', () => {
  const job = readProviderJob({
    id: 'ftjob-1',
    status: 'Running',
    error: {},
    result_files: 'none',
    trained_tokens: 1.5,
  });
  expect(job && toView(job, 'queued')).toEqual({
    status: 'running',
    method: null,
    hyperparameters: null,
    fine_tuned_model: null,
    trained_tokens: null,
    estimated_finish: null,
    finished_at: null,
    error: null,
    result_files: [],
  });
  for (const value of [null, 'text', {}, { id: '' }, { id: 7 }]) expect(readProviderJob(value)).toBeNull();
});

test('an unknown status keeps the previous one', () => {
  const job = readProviderJob({ id: 'ftjob-1', status: 'polishing' });
  expect(job && toView(job, 'running').status).toBe('running');
  const canceled = readProviderJob({ id: 'ftjob-1', status: 'canceled' });
  expect(canceled && toView(canceled, 'running').status).toBe('cancelled');
});

test('what is recorded is bounded and storable in the log', () => {
  const event = readProviderEvent(
    'ftjob-1',
    {
      id: 'ftevent-1',
      created_at: 5,
      level: 'shout',
      message: `a\0b\uD800${'x'.repeat(10_000)}`,
      type: 'metrics',
      data: { deep: { text: 'c\0' }, 'k\0': 1 },
    },
    same,
  );
  expect(event).toMatchObject({ level: 'info', type: 'metrics', data: { deep: { text: 'c\uFFFD' }, 'k\uFFFD': 1 } });
  expect(event?.message.startsWith('a\uFFFDb\uFFFDx')).toBe(true);
  expect(event?.message.length).toBe(4_000);
  const large = { id: 'ftevent-2', data: { text: 'x'.repeat(100_000) } };
  expect(readProviderEvent('ftjob-1', large, same)).toMatchObject({ data: null, created_at: 0 });
});

test('our ids are the same for the same record, and different for another job', () => {
  const read = (jobId: string) => readProviderEvent(jobId, { id: 'ftevent-1' }, same)?.id;
  expect(read('ftjob-1')).toMatch(/^ftevent-[0-9a-f]{32}$/);
  expect(read('ftjob-1')).toBe(read('ftjob-1'));
  expect(read('ftjob-2')).not.toBe(read('ftjob-1'));
});

test('metrics that are not numbers are left out, and a checkpoint without a step is ignored', () => {
  const checkpoint = { id: 'ftckpt_1', step_number: 3, fine_tuned_model_checkpoint: 'ft:x:3' };
  expect(
    readProviderCheckpoint('ftjob-1', { ...checkpoint, metrics: { step: 3, train_loss: '0.1', x: null } }),
  ).toMatchObject({
    metrics: { step: 3 },
  });
  expect(readProviderCheckpoint('ftjob-1', { ...checkpoint, step_number: null })).toBeNull();
});
