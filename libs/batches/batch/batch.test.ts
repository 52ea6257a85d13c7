import { describe, expect, test } from 'vitest';
import type { BatchStatus } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import { foldEvent } from '#libs/event-log/inline-model.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { bitsOfLines } from '../chunks/settled-lines.ts';
import {
  cancelGraceMs,
  decideBatch,
  isTerminal,
  canStartLines,
  acceptsResults,
  type BatchCommand,
  type BatchEvent,
  type BatchOutcome,
  type BatchState,
} from './batch.ts';
import { batchModel, type BatchRow } from './batch-model.ts';

const minuteMs = 60_000;
const createdAt = new Date('2026-11-21T10:00:00Z');
const expiresAt = new Date('2026-11-22T10:00:00Z');
const during = new Date('2026-11-21T11:00:00Z');
const outcome: BatchOutcome = {
  output_file_id: 'file-out',
  output_sha256: 'aa',
  error_file_id: null,
  error_sha256: null,
  total: 10,
  completed: 10,
  failed: 0,
};

const created: BatchEvent = {
  type: 'batch.created',
  data: {
    input_file_id: 'file-in',
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    metadata: null,
    expires_at: expiresAt.toISOString(),
    output_expires_after: null,
    target: { type: 'none' },
    gateway_options: {},
    headers: {},
  },
};
const validated: BatchEvent = { type: 'batch.validated', data: { line_count: 10, chunk_count: 2, model: 'm' } };
const cancelRequested: BatchEvent = { type: 'batch.cancel_requested', data: {} };
const finalizing = (reason: 'completed' | 'cancelled' | 'expired'): BatchEvent => ({
  type: 'batch.finalizing',
  data: { reason },
});

const settled = (completed: number, failed = 0) => ({
  chunks: [{ chunk: 0, ...bitsOfLines(Array.from({ length: completed + failed }, (_value, index) => index + 1)) }],
  completed,
  failed,
  usage: [],
  results_root: 'root',
});

/** The row that a history folds to, with each event recorded at `during`. */
function stateAfter(...history: BatchEvent[]): BatchRow {
  let row: BatchRow | undefined;
  for (const [index, event] of history.entries()) {
    const recorded = {
      ...event,
      eventId: `event-${index}`,
      workspaceId: 'ws_1',
      streamId: 'batch_1',
      streamVersion: index + 1,
      schemaVersion: 1,
      recordedAt: index === 0 ? createdAt : during,
    } as RecordedEvent<BatchEvent>;
    row = foldEvent(batchModel, row, recorded);
  }
  return row as BatchRow;
}

const states = {
  validating: [created],
  'cancelling before validation': [created, cancelRequested],
  in_progress: [created, validated],
  'cancelling after validation': [created, validated, cancelRequested],
  finalizing: [created, validated, finalizing('completed')],
  'finalizing (cancelled)': [created, validated, cancelRequested, finalizing('cancelled')],
  'finalizing (expired)': [created, validated, finalizing('expired')],
  completed: [created, validated, finalizing('completed'), { type: 'batch.completed', data: outcome }],
  cancelled: [created, cancelRequested, { type: 'batch.cancelled', data: outcome }],
  expired: [created, validated, finalizing('expired'), { type: 'batch.expired', data: outcome }],
  failed: [created, { type: 'batch.failed', data: { errors: [] } }],
} satisfies Record<string, BatchEvent[]>;
type StateName = keyof typeof states;

const commands = {
  'finish validation': { type: 'finish_validation', lineCount: 10, chunkCount: 2, model: 'm' },
  'fail validation': { type: 'fail_validation', errors: [] },
  'settle some': { type: 'settle', settled: settled(3, 1), openChunks: 2 },
  'settle the last': { type: 'settle', settled: settled(9, 1), openChunks: 1 },
  'settle nothing new': { type: 'settle', settled: null, openChunks: 1 },
  'record redelivery': { type: 'record_redelivery', chunk: 1, attempt: 2, unsettled: 5 },
  cancel: { type: 'cancel' },
  'close with open chunks': { type: 'close', openChunks: 1 },
  'close drained': { type: 'close', openChunks: 0 },
  finish: { type: 'finish', outcome },
} satisfies Record<string, BatchCommand>;
type CommandName = keyof typeof commands;

type Expected = string[] | 'conflict';
const nothing: Record<CommandName, Expected> = {
  'finish validation': [],
  'fail validation': [],
  'settle some': [],
  'settle the last': [],
  'settle nothing new': [],
  'record redelivery': [],
  cancel: [],
  'close with open chunks': [],
  'close drained': [],
  finish: [],
};
const ended = { ...nothing, cancel: 'conflict' as const };

// The effect of each command in each state before the deadline. `finalizing` is shown with its reason.
const withinWindow: Record<StateName, Record<CommandName, Expected>> = {
  validating: {
    ...nothing,
    'finish validation': ['batch.validated'],
    'fail validation': ['batch.failed'],
    cancel: ['batch.cancel_requested'],
  },
  'cancelling before validation': {
    ...nothing,
    'finish validation': ['batch.cancelled'],
    'fail validation': ['batch.cancelled'],
  },
  in_progress: {
    ...nothing,
    'settle some': ['batch.lines_settled'],
    'settle the last': ['batch.lines_settled', 'batch.finalizing completed'],
    'record redelivery': ['batch.chunk_redelivered'],
    cancel: ['batch.cancel_requested'],
  },
  'cancelling after validation': {
    ...nothing,
    'settle some': ['batch.lines_settled'],
    'settle the last': ['batch.lines_settled', 'batch.finalizing cancelled'],
    'record redelivery': ['batch.chunk_redelivered'],
    'close drained': ['batch.finalizing cancelled'],
  },
  finalizing: { ...ended, finish: ['batch.completed'] },
  'finalizing (cancelled)': { ...nothing, finish: ['batch.cancelled'] },
  'finalizing (expired)': { ...ended, finish: ['batch.expired'] },
  completed: ended,
  cancelled: nothing,
  expired: ended,
  failed: ended,
};

// The states in which the deadline changes the decision.
const pastDeadline: Partial<Record<StateName, Partial<Record<CommandName, Expected>>>> = {
  validating: { 'close with open chunks': ['batch.expired'], 'close drained': ['batch.expired'] },
  'cancelling before validation': {
    'close with open chunks': ['batch.cancelled'],
    'close drained': ['batch.cancelled'],
  },
  in_progress: {
    'close with open chunks': ['batch.finalizing expired'],
    'close drained': ['batch.finalizing expired'],
  },
  'cancelling after validation': {
    'settle some': ['batch.lines_settled', 'batch.finalizing cancelled'],
    'settle nothing new': ['batch.finalizing cancelled'],
    'close with open chunks': ['batch.finalizing cancelled'],
  },
};

function decided(state: StateName, command: CommandName, now: Date): Expected {
  try {
    return decideBatch(stateAfter(...states[state]), commands[command], now).map((event) =>
      event.type === 'batch.finalizing' ? `${event.type} ${event.data.reason}` : event.type,
    );
  } catch (error) {
    if (error instanceof GatewayError && error.kind === 'conflict') return 'conflict';
    throw error;
  }
}

const table = (Object.keys(states) as StateName[]).flatMap((state) =>
  (Object.keys(commands) as CommandName[]).map((command) => ({ state, command })),
);

describe('within the completion window', () => {
  test.each(table)('$state: $command', ({ state, command }) => {
    expect(decided(state, command, during)).toEqual(withinWindow[state][command]);
  });
});

describe('at the deadline and after', () => {
  test.each(table)('$state: $command', ({ state, command }) => {
    const expected = pastDeadline[state]?.[command] ?? withinWindow[state][command];
    expect(decided(state, command, expiresAt)).toEqual(expected);
    expect(decided(state, command, new Date(expiresAt.getTime() + minuteMs))).toEqual(expected);
  });
});

test('a cancelled batch waits ten minutes for running lines, and no longer', () => {
  const state = stateAfter(...states['cancelling after validation']);
  const close: BatchCommand = { type: 'close', openChunks: 1 };
  const settle: BatchCommand = { type: 'settle', settled: settled(1), openChunks: 1 };
  const patience = during.getTime() + cancelGraceMs;
  expect(decideBatch(state, close, new Date(patience - 1))).toEqual([]);
  expect(decideBatch(state, close, new Date(patience))).toEqual([finalizing('cancelled')]);
  expect(decideBatch(state, settle, new Date(patience)).map((event) => event.type)).toEqual([
    'batch.lines_settled',
    'batch.finalizing',
  ]);
});

test('ten minutes after a cancel a batch ends also if its validation never does, because its job was lost', () => {
  const state = stateAfter(...states['cancelling before validation']);
  const patience = (state.cancelling_at?.getTime() ?? 0) + 10 * 60_000;
  const close: BatchCommand = { type: 'close', openChunks: 0 };
  expect(decideBatch(state, close, new Date(patience - 1))).toEqual([]);
  expect(decideBatch(state, close, new Date(patience)).map(({ type }) => type)).toEqual(['batch.cancelled']);
});

test('a settle that closes the last chunk of a cancelled batch ends it at once', () => {
  const state = stateAfter(...states['cancelling after validation']);
  const settle: BatchCommand = { type: 'settle', settled: settled(1), openChunks: 0 };
  expect(decideBatch(state, settle, during).map((event) => event.type)).toEqual([
    'batch.lines_settled',
    'batch.finalizing',
  ]);
});

test('results settled earlier count towards the last line', () => {
  const state = stateAfter(created, validated, { type: 'batch.lines_settled', data: settled(5, 4) });
  const last: BatchCommand = { type: 'settle', settled: settled(1), openChunks: 1 };
  expect(decideBatch(state, last, during).map((event) => event.type)).toEqual([
    'batch.lines_settled',
    'batch.finalizing',
  ]);
});

test('events carry what the commands say', () => {
  const validating = stateAfter(created);
  expect(decideBatch(validating, commands['finish validation'], during)).toEqual([validated]);
  const errors = [{ code: 'invalid_json_line', message: 'no', param: null, line: 3 }];
  expect(decideBatch(validating, { type: 'fail_validation', errors }, during)).toEqual([
    { type: 'batch.failed', data: { errors } },
  ]);
  const running = stateAfter(...states.in_progress);
  expect(decideBatch(running, commands['settle some'], during)).toEqual([
    { type: 'batch.lines_settled', data: settled(3, 1) },
  ]);
  expect(decideBatch(running, commands['record redelivery'], during)).toEqual([
    { type: 'batch.chunk_redelivered', data: { chunk: 1, attempt: 2, unsettled: 5 } },
  ]);
  expect(decideBatch(stateAfter(...states.finalizing), commands.finish, during)).toEqual([
    { type: 'batch.completed', data: outcome },
  ]);
});

test('a batch is paused and resumed once however often it is asked, while it is validated or runs', () => {
  const paused: BatchEvent = { type: 'batch.paused', data: {} };
  const resumed: BatchEvent = { type: 'batch.resumed', data: {} };
  const pause = (...history: BatchEvent[]) => decideBatch(stateAfter(...history), { type: 'pause' }, during);
  const resume = (...history: BatchEvent[]) => decideBatch(stateAfter(...history), { type: 'resume' }, during);
  for (const history of [states.validating, states.in_progress]) {
    expect([pause(...history), resume(...history)]).toEqual([[paused], []]);
    expect([pause(...history, paused), resume(...history, paused)]).toEqual([[], [resumed]]);
    expect(pause(...history, paused, resumed)).toEqual([paused]);
  }
  expect(canStartLines(stateAfter(created, paused, validated))).toBe(false);
  expect(canStartLines(stateAfter(created, paused, validated, resumed))).toBe(true);
});

test('a paused batch takes results, is cancelled and expires like any other, and is then no longer paused', () => {
  const batch = stateAfter(created, validated, { type: 'batch.paused', data: {} });
  expect(acceptsResults(batch)).toBe(true);
  expect(decideBatch(batch, { type: 'cancel' }, during)).toEqual([cancelRequested]);
  expect(decideBatch(batch, { type: 'close', openChunks: 2 }, expiresAt)).toEqual([finalizing('expired')]);
  for (const next of [cancelRequested, finalizing('expired')]) {
    expect(stateAfter(created, { type: 'batch.paused', data: {} }, next).paused_at).toBeNull();
  }
});

test.each(['cancelling after validation', 'finalizing', 'completed', 'cancelled', 'expired', 'failed'] as const)(
  'a batch that is %s is neither paused nor resumed',
  (name) => {
    const batch = stateAfter(...states[name]);
    for (const type of ['pause', 'resume'] as const) {
      expect(() => decideBatch(batch, { type }, during)).toThrow(
        `Cannot ${type} a batch with status '${batch.status}'`,
      );
    }
  },
);

test('a batch that was cancelled before it was validated ends without lines and files', () => {
  const [event] = decideBatch(stateAfter(created, cancelRequested), commands['finish validation'], during);
  expect(event).toEqual({
    type: 'batch.cancelled',
    data: {
      output_file_id: null,
      output_sha256: null,
      error_file_id: null,
      error_sha256: null,
      total: 0,
      completed: 0,
      failed: 0,
    },
  });
});

test('results are accepted while the batch runs or drains, and never before validation or after finalizing', () => {
  const taking = (Object.keys(states) as StateName[]).filter((state) => acceptsResults(stateAfter(...states[state])));
  expect(taking).toEqual(['in_progress', 'cancelling after validation']);
});

test('four states are final', () => {
  const all: Record<BatchStatus, boolean> = {
    validating: false,
    in_progress: false,
    cancelling: false,
    finalizing: false,
    completed: true,
    cancelled: true,
    expired: true,
    failed: true,
  };
  for (const [status, final] of Object.entries(all)) expect(isTerminal(status as BatchStatus)).toBe(final);
});

test('a refused cancel names the status that prevents it', () => {
  expect(() => decideBatch(stateAfter(...states.finalizing), { type: 'cancel' }, during)).toThrow(
    "Cannot cancel a batch with status 'finalizing'.",
  );
});

test('deciding changes neither the state nor the command', () => {
  for (const { state, command } of table.filter((row) => withinWindow[row.state][row.command] !== 'conflict')) {
    const before: BatchState = Object.freeze(stateAfter(...states[state]));
    const asked = structuredClone(commands[command]);
    decideBatch(before, commands[command], during);
    expect(commands[command]).toEqual(asked);
  }
});
