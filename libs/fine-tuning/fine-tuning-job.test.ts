import { describe, expect, test } from 'vitest';
import type { FineTuningStatus } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import { foldEvent } from '#libs/event-log/inline-model.ts';
import {
  decideFineTuning,
  type FineTuningCommand,
  type FineTuningEvent,
  type FineTuningView,
  type RecordedFineTuningEvent,
} from './fine-tuning-job.ts';
import { fineTuningJobModel, type FineTuningJobRow } from './fine-tuning-job-model.ts';

const created: FineTuningEvent = {
  type: 'fine_tuning_job.created',
  data: {
    request: { model: 'base', seed: 1, hyperparameters: { n_epochs: 2 } },
    training_file_id: 'file-1',
    validation_file_id: null,
    metadata: null,
    target: { type: 'virtual_key', virtual_key_id: 'vk_1' },
  },
};
const uploaded: FineTuningEvent = {
  type: 'fine_tuning_job.files_uploaded',
  data: { provider_training_file_id: 'file-there', provider_validation_file_id: null },
};
const accepted: FineTuningEvent = {
  type: 'fine_tuning_job.provider_accepted',
  data: { provider_job_id: 'ftjob-there' },
};
const view: FineTuningView = {
  status: 'running',
  method: null,
  hyperparameters: null,
  fine_tuned_model: null,
  trained_tokens: null,
  estimated_finish: null,
  finished_at: null,
  error: null,
  result_files: [],
};
const reached = (status: FineTuningStatus, more: Partial<FineTuningView> = {}): FineTuningEvent => ({
  type: 'fine_tuning_job.status_changed',
  data: { ...view, status, ...more },
});
const eventOf = (id: string): RecordedFineTuningEvent => ({
  id,
  provider_id: id,
  created_at: 1,
  level: 'info',
  message: 'text',
  type: 'message',
  data: null,
});
const wish = (control: 'cancel' | 'pause' | 'resume'): FineTuningEvent => ({
  type: `fine_tuning_job.${control}_requested`,
  data: {},
});

function fold(events: readonly FineTuningEvent[]): FineTuningJobRow {
  let row: FineTuningJobRow | undefined;
  for (const [index, event] of events.entries()) {
    const recorded = {
      ...event,
      eventId: `00000000-0000-0000-0000-00000000000${index}`,
      workspaceId: 'ws_1',
      streamId: 'ftjob-1',
      streamVersion: index + 1,
      schemaVersion: 1,
      recordedAt: new Date(1_700_000_000_000 + index * 1_000),
    } as RecordedEvent<FineTuningEvent>;
    row = foldEvent(fineTuningJobModel, row, recorded);
  }
  if (!row) throw new Error('no events');
  return row;
}
const decide = (past: readonly FineTuningEvent[], command: FineTuningCommand): FineTuningEvent[] =>
  decideFineTuning(fold([created, ...past]), command);
const typesOf = (events: readonly FineTuningEvent[]) => events.map(({ type }) => type.slice('fine_tuning_job.'.length));
const there = [uploaded, accepted];

test('until the provider shows its own values, the requested ones are shown, with auto for the rest', () => {
  const row = fold([created]);
  expect(row).toMatchObject({
    status: 'validating_files',
    hyperparameters: { batch_size: 'auto', learning_rate_multiplier: 'auto', n_epochs: 2 },
    method: { type: 'supervised', supervised: { hyperparameters: { n_epochs: 2 } } },
  });
  const own = { n_epochs: 2, batch_size: 1 };
  const after = fold([created, ...there, reached('running', { hyperparameters: own })]);
  expect([after.hyperparameters, after.method]).toEqual([own, row.method]);
});

test('an upload and an acceptance count once, whichever worker records them first', () => {
  const upload = { type: 'record_upload', trainingFileId: 'file-there', validationFileId: null } as const;
  const accept = { type: 'accept', providerJobId: 'ftjob-there' } as const;
  expect(decide([], upload)).toEqual([uploaded]);
  expect(decide([uploaded], upload)).toEqual([]);
  expect(decide([uploaded], accept)).toEqual([accepted]);
  expect(decide(there, { ...accept, providerJobId: 'ftjob-second' })).toEqual([]);
  expect(decide([...there, reached('failed')], accept)).toEqual([]);
});

describe('cancel', () => {
  test('ends a job at once while no create call can have been sent', () => {
    const events = decide([], { type: 'cancel' });
    expect(typesOf(events)).toEqual(['cancel_requested', 'status_changed']);
    expect(fold([created, ...events])).toMatchObject({
      status: 'cancelled',
      requested: null,
      finished_at: new Date(1_700_000_002_000),
    });
    const late = { type: 'record_upload', trainingFileId: 'file-there', validationFileId: null } as const;
    expect(decide(events, late)).toEqual([]);
  });

  test('waits for the provider when one may have been sent, and counts once', () => {
    expect(decide([uploaded], { type: 'cancel' })).toEqual([wish('cancel')]);
    expect(decide([...there, wish('cancel')], { type: 'cancel' })).toEqual([]);
    expect(typesOf(decide([uploaded, wish('cancel')], { type: 'withdraw' }))).toEqual(['status_changed']);
    expect(decide([...there, wish('cancel')], { type: 'withdraw' })).toEqual([]);
    expect(decide([uploaded], { type: 'withdraw' })).toEqual([]);
  });

  test('succeeds again on a cancelled job and is refused on one that ended otherwise', () => {
    expect(decide([...there, reached('cancelled')], { type: 'cancel' })).toEqual([]);
    for (const status of ['succeeded', 'failed'] as const) {
      expect(() => decide([...there, reached(status)], { type: 'cancel' })).toThrow(
        expect.objectContaining({ kind: 'conflict', message: expect.stringContaining(`'${status}'`) }),
      );
    }
  });

  test('a job whose create call the provider refused meanwhile ends as cancelled', () => {
    const error = { code: 'x', message: 'no', param: null };
    const [event] = decide([uploaded, wish('cancel')], { type: 'fail', error });
    expect(event).toMatchObject({ data: { status: 'cancelled', error: null } });
    expect(decide([uploaded], { type: 'fail', error })).toMatchObject([{ data: { status: 'failed', error } }]);
    expect(decide([...there, reached('succeeded')], { type: 'fail', error })).toEqual([]);
  });
});

test.for<[string, FineTuningEvent[], 'pause' | 'resume', 'requested' | 'so already' | 'refused']>([
  ['pause of a running job', [reached('running')], 'pause', 'requested'],
  ['pause of a queued job', [reached('queued')], 'pause', 'requested'],
  ['pause of a job that is validated', [], 'pause', 'refused'],
  ['pause of a paused job', [reached('paused')], 'pause', 'so already'],
  ['pause asked for twice', [reached('running'), wish('pause')], 'pause', 'so already'],
  ['pause of a job about to be resumed', [reached('paused'), wish('resume')], 'pause', 'requested'],
  ['pause of a job about to be cancelled', [reached('running'), wish('cancel')], 'pause', 'refused'],
  ['pause of a job that ended', [reached('succeeded')], 'pause', 'refused'],
  ['resume of a paused job', [reached('paused')], 'resume', 'requested'],
  ['resume asked for twice', [reached('paused'), wish('resume')], 'resume', 'so already'],
  ['resume of a running job', [reached('running')], 'resume', 'refused'],
  ['resume of a job about to be paused', [reached('running'), wish('pause')], 'resume', 'requested'],
  ['resume of a job about to be cancelled', [reached('paused'), wish('cancel')], 'resume', 'refused'],
  ['resume of a job that ended', [reached('failed')], 'resume', 'refused'],
])('%s', ([, past, control, outcome]) => {
  const attempt = () => {
    try {
      return decide([...there, ...past], { type: control });
    } catch (error) {
      return error;
    }
  };
  const expected = {
    refused: expect.objectContaining({ name: 'GatewayError', kind: 'conflict' }),
    requested: [wish(control)],
    'so already': [],
  };
  expect(attempt()).toEqual(expected[outcome]);
});

test('the answer to a request ends it, and a refusal becomes an event', () => {
  const past = [...there, reached('running'), wish('pause')];
  const error = { code: 'x', message: 'no', param: null };
  const answer = { type: 'record_answer', request: 'pause', error: null, note: null } as const;
  expect(typesOf(decide(past, answer))).toEqual(['request_answered']);
  expect(typesOf(decide(past, { ...answer, error, note: eventOf('ftevent-1') }))).toEqual([
    'request_answered',
    'event_recorded',
  ]);
  // Another request arrived meanwhile, and the answer to the first one does not end it.
  expect(decide([...past, wish('cancel')], answer)).toEqual([]);
  expect(fold([created, ...past, ...decide(past, answer)]).requested).toBeNull();
});

test('a poll records what is new, with the state last, and nothing when nothing has changed', () => {
  const nothing = { type: 'observe', view: null, events: [], checkpoints: [] } as const;
  const seen = decide(there, { ...nothing, view, events: [eventOf('a'), eventOf('b')] });
  expect(typesOf(seen)).toEqual(['event_recorded', 'event_recorded', 'status_changed']);
  expect(decide([...there, ...seen], { ...nothing, view })).toEqual([]);
  const shuffled = { ...view, method: { type: 'dpo', dpo: { b: 1, a: 2 } } };
  const after = [...there, ...seen, ...decide([...there, ...seen], { ...nothing, view: shuffled })];
  const other = { ...view, method: { dpo: { a: 2, b: 1 }, type: 'dpo' } };
  expect(decide(after, { ...nothing, view: other })).toEqual([]);
});

test('an estimate that changes by seconds is not recorded, and one that changes by minutes is', () => {
  const past = [...there, reached('running', { estimated_finish: 1_000 })];
  const observe = (estimate: number | null) =>
    decide(past, { type: 'observe', view: { ...view, estimated_finish: estimate }, events: [], checkpoints: [] });
  expect(observe(1_059)).toEqual([]);
  expect(typesOf(observe(1_060))).toEqual(['status_changed']);
  expect(typesOf(observe(null))).toEqual(['status_changed']);
});

test('nothing is added to a job that has ended', () => {
  const past = [...there, reached('succeeded', { finished_at: 1_700_000_500 })];
  expect(decide(past, { type: 'observe', view, events: [eventOf('a')], checkpoints: [] })).toEqual([]);
  expect(fold([created, ...past]).finished_at).toEqual(new Date(1_700_000_500_000));
});
