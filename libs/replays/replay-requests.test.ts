import { expect, test } from 'vitest';
import type { LogListRow } from '#libs/request-log/read/read-log.ts';
import { ReplayRequests } from './replay-requests.ts';

const unchanged = { model: null, prompt: null };
const limits = { calls: 100, bytes: 10_000, ms: 60_000 };
const uuid = (number: number): string => `019a0000-0000-7000-8000-${String(number).padStart(12, '0')}`;

const callRow = (number: number, members: Partial<LogListRow> = {}) =>
  ({
    id: uuid(number),
    workspace_id: 'ws_1',
    path: '/v1/chat/completions',
    status: 200,
    error_code: null,
    attempts: 1,
    bodies_blob: `blob.${number}`,
    ...members,
  }) as LogListRow;

async function* onePage(...rows: LogListRow[]): AsyncGenerator<LogListRow[]> {
  yield rows;
}

async function readLines(lines: AsyncIterable<Buffer>): Promise<unknown[]> {
  const pieces: Buffer[] = [];
  for await (const piece of lines) pieces.push(piece);
  const text = Buffer.concat(pieces).toString();
  return text === ''
    ? []
    : text
        .trimEnd()
        .split('\n')
        .map((line): unknown => JSON.parse(line));
}

const bodies = (request: object | null) => async () => ({
  request: request === null ? null : JSON.stringify(request),
  response: null,
});

test('a recorded call becomes a line with its log ID, another model, and without the stream', async () => {
  const requests = new ReplayRequests('/v1/chat/completions', { ...unchanged, model: 'cheap' }, limits);
  const body = { model: 'dear', messages: [], stream: true, stream_options: { include_usage: true } };
  const lines = await readLines(requests.ofCalls(onePage(callRow(1)), bodies(body)));
  expect(lines).toEqual([
    {
      custom_id: 'log_019a0000000070008000000000000001',
      method: 'POST',
      url: '/v1/chat/completions',
      body: { model: 'cheap', messages: [] },
    },
  ]);
  expect(requests.selection).toEqual({ calls: 1, left_out: {}, has_more: false });
});

test('calls that cannot be replayed are left out and counted by reason', async () => {
  const requests = new ReplayRequests('/v1/chat/completions', unchanged, limits);
  const rows = [
    callRow(1, { path: '/v1/embeddings' }),
    callRow(2, { status: 429, error_code: 'http_429' }),
    callRow(3, { bodies_blob: null }),
    callRow(4),
  ];
  expect(await readLines(requests.ofCalls(onePage(...rows), bodies({ messages: [] })))).toEqual([]);
  expect(requests.selection.left_out).toEqual({ other_endpoint: 1, failed: 1, no_recorded_body: 1, no_model: 1 });
  const unread = new ReplayRequests('/v1/chat/completions', unchanged, limits);
  expect(await readLines(unread.ofCalls(onePage(callRow(1)), async () => null))).toEqual([]);
  expect(unread.selection.left_out).toEqual({ no_recorded_body: 1 });
});

test('the limit of calls and that of bytes end the selection, and the rest is reported as more', async () => {
  const rows = [callRow(1), callRow(2), callRow(3)];
  const few = new ReplayRequests('/v1/chat/completions', unchanged, { ...limits, calls: 2 });
  expect(await readLines(few.ofCalls(onePage(...rows), bodies({ model: 'm' })))).toHaveLength(2);
  expect(few.selection).toMatchObject({ calls: 2, has_more: true });
  const small = new ReplayRequests('/v1/chat/completions', unchanged, { ...limits, bytes: 10 });
  expect(await readLines(small.ofCalls(onePage(...rows), bodies({ model: 'm' })))).toEqual([]);
  expect(small.selection).toMatchObject({ calls: 0, has_more: true });
  const all = new ReplayRequests('/v1/chat/completions', unchanged, { ...limits, calls: 3 });
  await readLines(all.ofCalls(onePage(...rows), bodies({ model: 'm' })));
  expect(all.selection).toMatchObject({ calls: 3, has_more: false });
});

async function* input(...lines: object[]): AsyncGenerator<Buffer> {
  yield Buffer.from(lines.map((line) => JSON.stringify(line)).join('\n'));
}

test('lines of a batch keep their custom_id, and those with a prompt can name another version', async () => {
  const requests = new ReplayRequests('/v1/chat/completions', { ...unchanged, prompt: 'support@7' }, limits);
  const lines = [
    { custom_id: 'a', body: { prompt_id: 'support', variables: { name: 'Ada' } } },
    { custom_id: 'b', body: { model: 'm', messages: [] } },
  ];
  expect(await readLines(requests.ofLines(input(...lines)))).toEqual([
    {
      custom_id: 'a',
      method: 'POST',
      url: '/v1/chat/completions',
      body: { prompt_id: 'support@7', variables: { name: 'Ada' } },
    },
  ]);
  expect(requests.selection).toEqual({ calls: 1, left_out: { no_prompt: 1 }, has_more: false });
});
