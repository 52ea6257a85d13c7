import { expect, test } from 'vitest';
import type { StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { chatRequest, chunk } from '#test/forwarding-rig.ts';
import { recoverStream, type Recovery } from './recover-stream.ts';

const truncated = new GatewayError('provider_failed', 'upstream_truncated', 'cut');
const summary: StreamSummary = {
  usage: { inputTokens: 3, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 },
  model: 'm',
  finishReason: null,
  complete: false,
  firstEventMs: 1,
  isEstimate: true,
  error: truncated,
};

/** A stream that yields these payloads and breaks off. `left` is whether its reader has left it. */
function brokenStream(payloads: readonly string[]) {
  const state = { left: false };
  const waiting = [...payloads];
  const iterator: AsyncIterator<readonly string[]> = {
    next: async () => {
      const payload = waiting.shift();
      if (payload === undefined) throw truncated;
      return { done: false, value: [payload] };
    },
    return: async () => {
      state.left = true;
      return { done: true, value: undefined };
    },
  };
  const stream: StreamAnswer = {
    kind: 'stream',
    status: 200,
    headers: {},
    providerRequestId: null,
    attempts: [{ startedAt: 0, durationMs: 1, status: 200, errorCode: null }],
    usage: null,
    model: null,
    finishReason: null,
    events: { [Symbol.asyncIterator]: () => iterator },
    done: Promise.resolve(summary),
  };
  return { stream, state };
}

function countingLease(freeBytes: number) {
  const held = { bytes: 0, mostBytes: 0 };
  const lease = {
    tryCharge: (bytes: number) => {
      if (held.bytes + bytes > freeBytes) return false;
      held.bytes += bytes;
      held.mostBytes = Math.max(held.mostBytes, held.bytes);
      return true;
    },
    give: (bytes: number) => void (held.bytes -= bytes),
  } as unknown as MemoryLease;
  return { held, lease };
}

const recovery = (more: Partial<Recovery>): Recovery => ({
  request: chatRequest({ stream: true }),
  edits: {},
  continuesText: true,
  callNext: async () => null,
  ...more,
});

async function read(stream: StreamAnswer): Promise<{ payloads: string[]; error: unknown }> {
  const payloads: string[] = [];
  try {
    for await (const batch of stream.events) for (const payload of batch) payloads.push(payload);
    return { payloads, error: null };
  } catch (error) {
    return { payloads, error };
  }
}

const said = [chunk({ role: 'assistant', content: '' }), chunk({ content: 'Once' })];

test('the text is charged to the call while it is retained, and the usage of the first target is paid', async () => {
  const { held, lease } = countingLease(100_000);
  const { stream } = brokenStream(said);
  const asked: object[] = [];
  const recovered = recoverStream(stream, {
    ...recovery({ request: chatRequest({ stream: true, memory: lease }) }),
    callNext: async (_broken, _error, edits) => {
      asked.push(edits);
      return { kind: 'failed', error: truncated, attempts: [] };
    },
  });
  expect(await read(recovered)).toEqual({ payloads: said, error: truncated });
  expect(asked).toEqual([{ messages: expect.stringContaining('{"role":"assistant","content":"Once"}') }]);
  expect(held.bytes).toBe(0);
  expect(held.mostBytes).toBeGreaterThanOrEqual(2 * 'Once'.length);
  expect(stream.attempts[0]).toMatchObject({
    errorCode: 'upstream_truncated',
    paid: { responseModel: 'm', usage: summary.usage },
  });
  expect(recovered.attempts).toEqual([]);
  expect(await recovered.done).toEqual(summary);
});

test('without memory for its text, or after too long a text, a stream ends with its error', async () => {
  const asked: object[] = [];
  const callNext: Recovery['callNext'] = async (_broken, _error, edits) => (asked.push(edits), null);
  const { held, lease } = countingLease(10);
  const request = chatRequest({ stream: true, memory: lease });
  expect((await read(recoverStream(brokenStream(said).stream, recovery({ request, callNext })))).error).toBe(truncated);
  const long = [...said, chunk({ content: 'x'.repeat(1_048_577) })];
  expect((await read(recoverStream(brokenStream(long).stream, recovery({ callNext })))).error).toBe(truncated);
  expect([asked, held.bytes]).toEqual([[], 0]);
});

test('a stream of very many pieces can be continued', async () => {
  const pieces = Array.from({ length: 300_000 }, () => '{"choices":[{"delta":{"content":"x"}}]}');
  const { stream } = brokenStream([]);
  const asked: MemberEdits[] = [];
  const source = async function* () {
    yield pieces;
    throw truncated;
  };
  const recovered = recoverStream(
    { ...stream, events: source() },
    recovery({ callNext: async (_broken, _error, edits) => (asked.push(edits), null) }),
  );
  expect((await read(recovered)).error).toBe(truncated);
  expect(asked[0]?.['messages']).toContain('x'.repeat(300_000));
});

test('a stream that is left before it was read is cancelled at its provider', async () => {
  const { stream, state } = brokenStream(said);
  const recovered = recoverStream(stream, recovery({}));
  await recovered.events[Symbol.asyncIterator]().return?.();
  expect(state.left).toBe(true);
  expect(await recovered.done).toEqual(summary);
});
