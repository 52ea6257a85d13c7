import { expect, test } from 'vitest';
import type { ForwardRequest, JsonAnswer, Outcome } from '#libs/calls/call.ts';
import { toStream } from './answer-to-stream.ts';

const request: ForwardRequest = {
  operation: 'chat',
  body: Buffer.from('{"stream":true}'),
  edits: { seed: '7' },
  model: 'm',
  stream: true,
  includeUsage: true,
  signal: new AbortController().signal,
};
const usage = { inputTokens: 1, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 };
const answer = (fields: Partial<JsonAnswer> = {}, more: object = {}): JsonAnswer => ({
  kind: 'json',
  status: 200,
  headers: { 'x-a': 'b' },
  providerRequestId: 'r',
  attempts: [{ startedAt: 1, durationMs: 5, status: 200, errorCode: null }],
  usage,
  model: 'm-1',
  finishReason: 'stop',
  contentType: 'application/json',
  body: Buffer.from(
    JSON.stringify({
      id: 'c',
      choices: [{ index: 0, message: { role: 'assistant', content: 'Hi' }, finish_reason: 'stop' }],
      usage: { total_tokens: 3 },
      ...more,
    }),
  ),
  ...fields,
});

async function payloadsOf(outcome: Outcome): Promise<Record<string, unknown>[]> {
  if (outcome.kind !== 'stream') throw new Error('not a stream');
  const payloads: string[] = [];
  for await (const batch of outcome.events) payloads.push(...batch);
  return payloads.map((payload) => JSON.parse(payload) as Record<string, unknown>);
}

test('a whole answer becomes the stream that was requested, with usage, and the record keeps its figures', async () => {
  const outcome = toStream(answer(), request);
  expect(outcome).toMatchObject({ kind: 'stream', status: 200, headers: { 'x-a': 'b' }, providerRequestId: 'r' });
  expect(outcome.attempts).toHaveLength(1);
  const payloads = await payloadsOf(outcome);
  expect(payloads.map(({ choices }) => choices)).toEqual([
    [{ index: 0, delta: { role: 'assistant', content: 'Hi' }, finish_reason: null }],
    [{ index: 0, delta: {}, finish_reason: 'stop' }],
    [],
  ]);
  expect(payloads[2]?.['usage']).toEqual({ total_tokens: 3 });
  const done = outcome.kind === 'stream' ? await outcome.done : null;
  expect(done).toEqual({ usage, model: 'm-1', finishReason: 'stop', complete: true, firstEventMs: 5, error: null });
});

test.each([400, 446, 503])('an answer of status %i stays what it is', (status) => {
  const refused = answer({ status });
  expect(toStream(refused, request)).toBe(refused);
});

test('an answer with very many values does not become a stream, and its usage is reported', () => {
  const dense = answer({}, { x: Array.from({ length: 60_000 }, () => ({})) });
  expect(toStream(dense, request)).toMatchObject({
    kind: 'failed',
    error: { code: 'upstream_response_too_large' },
    attempts: dense.attempts,
    lostAnswer: { usage },
  });
});
