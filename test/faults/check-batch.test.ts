import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { resultLine } from '#libs/batches/results/result-line.ts';
import { bitsOfLines } from '#libs/batches/chunks/settled-lines.ts';
import { resultsRoot } from '#libs/batches/results/results-root.ts';
import { batchLineId } from '#libs/kernel/ids.ts';
import type { OpenAiBatch } from '#libs/batches/batch/to-openai-batch.ts';
import { checkBatch, type BatchEvidence } from './check-batch.ts';
import { writeInput } from './write-input.ts';

// The checker itself must be tested: each test breaks one thing in a correct batch.

const id = 'batch_1';
const total = 6;
const failed = 4; // the line that the provider refused

const input = writeInput({ name: 'check', lines: total, model: 'm' });
const customIds = input
  .toString('utf8')
  .trimEnd()
  .split('\n')
  .map((line) => (JSON.parse(line) as { custom_id: string }).custom_id);

function dataOf(line: number): Buffer {
  const customId = Buffer.from(JSON.stringify(customIds[line - 1]));
  const refused = line === failed;
  const body = refused ? { error: { message: 'no' } } : { usage: { prompt_tokens: 3, completion_tokens: 5 } };
  return resultLine(batchLineId(id, line), customId, {
    kind: 'response',
    statusCode: refused ? 400 : 200,
    requestId: 'req',
    body: Buffer.from(JSON.stringify(body)),
  });
}

const fileOf = (lines: readonly number[]): Buffer =>
  Buffer.from(lines.map((line) => `${dataOf(line).toString('utf8')}\n`).join(''));
const hash = (content: Buffer): string => createHash('sha256').update(content).digest('hex');

function settle(chunk: number, first: number, last: number): BatchEvent {
  const lines = Array.from({ length: last - first + 1 }, (_value, index) => first + index);
  const completed = lines.filter((line) => line !== failed).length;
  const usage = {
    provider: 'p',
    model: 'm',
    input_tokens: completed * 3,
    cached_tokens: 0,
    output_tokens: completed * 5,
    reasoning_tokens: 0,
    cost: null,
    price_version: null,
  };
  return {
    type: 'batch.lines_settled',
    data: {
      chunks: [{ chunk, ...bitsOfLines(lines) }],
      completed,
      failed: lines.length - completed,
      usage: [usage],
      results_root: resultsRoot(
        lines.map((line) => ({ line, sha256: createHash('sha256').update(dataOf(line)).digest() })),
      ),
    },
  };
}

function build(): BatchEvidence & { log: BatchEvent[] } {
  const output = fileOf([1, 2, 3, 5, 6]);
  const errors = fileOf([failed]);
  const outcome = {
    output_file_id: 'file-o',
    output_sha256: hash(output),
    error_file_id: 'file-e',
    error_sha256: hash(errors),
    total,
    completed: total - 1,
    failed: 1,
  };
  const created = {
    input_file_id: 'file-i',
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    metadata: null,
    expires_at: '2030-01-01T00:00:00.000Z',
    output_expires_after: null,
    target: { type: 'none' as const },
    gateway_options: {},
    headers: {},
  };
  const log: BatchEvent[] = [
    { type: 'batch.created', data: created },
    { type: 'batch.validated', data: { line_count: total, chunk_count: 2, model: 'm' } },
    settle(0, 1, 3),
    { type: 'batch.chunk_redelivered', data: { chunk: 1, attempt: 1, unsettled: 3 } },
    settle(1, 4, 6),
    { type: 'batch.finalizing', data: { reason: 'completed' } },
    { type: 'batch.completed', data: outcome },
  ];
  const batch = {
    id,
    status: 'completed',
    request_counts: { total, completed: total - 1, failed: 1 },
    output_file_id: 'file-o',
    error_file_id: 'file-e',
    usage: { input_tokens: 15, output_tokens: 25 },
    created_at: 1,
    in_progress_at: 2,
    finalizing_at: 3,
    completed_at: 4,
    cancelled_at: null,
    expired_at: null,
    failed_at: null,
  } as OpenAiBatch;
  const calls = { byLine: new Map(customIds.map((_id, index) => [index + 1, 1])), retriesMax: 0, lostWorker: true };
  return { batch, input, output, errors, events: [], seen: [], calls, log };
}

/** The violations of a batch with one thing changed. */
function violations(change: (evidence: ReturnType<typeof build>) => void = () => {}): string[] {
  const evidence = build();
  change(evidence);
  const events = evidence.log.map((event, index) => ({ event, version: index + 1, recordedAt: new Date(index) }));
  return checkBatch({ ...evidence, events: evidence.events.length > 0 ? evidence.events : events });
}

test('a correct batch violates nothing', () => {
  expect(violations()).toEqual([]);
});

const counts = { total, completed: total - 1, failed: 1 };

test.each<[string, RegExp, (evidence: ReturnType<typeof build>) => void]>([
  ['a line in no file', /missing: 2/, (one) => (one.output = fileOf([1, 3, 5, 6]))],
  ['a line twice in a file', /line 2 has two results/, (one) => (one.output = fileOf([1, 2, 2, 3, 5, 6]))],
  ['a line in both files', /line 1 has two results/, (one) => (one.errors = fileOf([1, failed]))],
  ['lines out of order', /not in the order/, (one) => (one.output = fileOf([1, 3, 2, 5, 6]))],
  ['a failure in the output file', /line 4 in the output file/, (one) => (one.output = fileOf([1, 2, 3, 4, 5, 6]))],
  [
    'a custom_id that nobody sent',
    /nobody sent/,
    (one) => (one.output = Buffer.from(one.output?.toString('utf8').replace('check-1"', 'check-x"') ?? '')),
  ],
  [
    'an answer that was changed afterwards',
    /not the one that the log names/,
    (one) =>
      (one.output = Buffer.from(
        one.output?.toString('utf8').replace('"completion_tokens":5', '"completion_tokens":6') ?? '',
      )),
  ],
  [
    'a wrong count',
    /request_counts: completed/,
    (one) => (one.batch = { ...one.batch, request_counts: { ...counts, completed: 6 } }),
  ],
  ['a lost event', /line 4 has a result that no event settled/, (one) => void one.log.splice(4, 1)],
  ['lines settled twice', /settled by events/, (one) => void one.log.splice(4, 0, settle(0, 1, 3))],
  ['two ends', /batch.completed follows batch.completed/, (one) => void one.log.push(...one.log.slice(-1))],
  ['an end without a file phase', /follows batch.lines_settled/, (one) => void one.log.splice(5, 1)],
  ['no end', /has not ended/, (one) => (one.batch = { ...one.batch, status: 'in_progress' })],
  ['another end than the log says', /its last event/, (one) => (one.batch = { ...one.batch, status: 'cancelled' })],
  ['usage that was counted twice', /usage of the batch/, (one) => (one.batch.usage.input_tokens = 30)],
  [
    'a root of other lines',
    /the root of its lines is another/,
    (one) => {
      const event = one.log[2];
      if (event?.type === 'batch.lines_settled') event.data.results_root = resultsRoot([]);
    },
  ],
  [
    'counts that fell while it ran',
    /counts fell/,
    (one) =>
      (one.seen = [5, 4].map((completed) => ({ status: 'in_progress', request_counts: { ...counts, completed } }))),
  ],
  [
    'a status that went back',
    /in_progress after finalizing/,
    (one) =>
      (one.seen = (['finalizing', 'in_progress'] as const).map((status) => ({ status, request_counts: counts }))),
  ],
  ['times that go backwards', /go backwards/, (one) => (one.batch = { ...one.batch, finalizing_at: 1 })],
  [
    'a call that nothing accounts for',
    /4 calls were repeated/,
    (one) =>
      (one.calls = {
        ...one.calls,
        byLine: new Map([
          [1, 2],
          [2, 2],
          [3, 2],
          [4, 2],
          [5, 1],
          [6, 1],
        ]),
        retriesMax: 0,
        lostWorker: true,
      }),
  ],
  [
    'a redelivery where no worker was lost',
    /1 chunks were redelivered/,
    (one) => (one.calls = { byLine: new Map(), retriesMax: 0, lostWorker: false }),
  ],
  [
    'an answer without a call',
    /never asked for/,
    (one) => (one.calls = { byLine: new Map([[1, 1]]), retriesMax: 0, lostWorker: true }),
  ],
])('%s is found', (_name, expected, change) => {
  expect(violations(change).join('\n')).toMatch(expected);
});

test('a gap in the versions of the stream is found', () => {
  const found = violations((one) => {
    one.events = one.log.map((event, index) => ({ event, version: index + 2, recordedAt: new Date(index) }));
  });
  expect(found.join('\n')).toMatch(/event 1 of the stream has version 2/);
});
