import { expect, test } from 'vitest';
import type { StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { chatRequest, chunk } from '#test/forwarding-rig.ts';
import { mendStream, type Mending } from './mend-stream.ts';

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

const mending = (more: Partial<Mending>): Mending => ({
  request: chatRequest({ stream: true }),
  continues: true,
  callNext: async () => null,
  ...more,
});

async function read(stream: StreamAnswer): Promise<{ payloads: string[]; error: unknown }> {
  const payloads: string[] = [];
  try {
    for await (const batch of stream.events) payloads.push(...batch);
    return { payloads, error: null };
  } catch (error) {
    return { payloads, error };
  }
}

const said = [chunk({ role: 'assistant', content: '' }), chunk({ content: 'Once' })];

test('what was sent is charged to the call while it is kept, and what the first target did is paid', async () => {
  const { held, lease } = countingLease(100_000);
  const { stream } = brokenStream(said);
  const asked: object[] = [];
  const mended = mendStream(stream, {
    ...mending({ request: chatRequest({ stream: true, memory: lease }) }),
    callNext: async (_broken, _error, edits) => {
      asked.push(edits);
      return { kind: 'failed', error: truncated, attempts: [] };
    },
  });
  expect(await read(mended)).toEqual({ payloads: said, error: truncated });
  expect(asked).toEqual([{ messages: expect.stringContaining('{"role":"assistant","content":"Once"}') }]);
  expect(held).toEqual({ bytes: 0, mostBytes: 2 * said.join('').length });
  expect(stream.attempts[0]).toMatchObject({
    errorCode: 'upstream_truncated',
    paid: { responseModel: 'm', usage: summary.usage },
  });
  expect(mended.attempts).toEqual([]);
  expect(await mended.done).toEqual(summary);
});

test('without memory to keep what was sent, or after more than is kept, a stream ends with its error', async () => {
  const asked: object[] = [];
  const callNext: Mending['callNext'] = async (_broken, _error, edits) => (asked.push(edits), null);
  const { held, lease } = countingLease(10);
  const request = chatRequest({ stream: true, memory: lease });
  expect((await read(mendStream(brokenStream(said).stream, mending({ request, callNext })))).error).toBe(truncated);
  const long = [...said, chunk({ content: 'x'.repeat(4_194_304) })];
  expect((await read(mendStream(brokenStream(long).stream, mending({ callNext })))).error).toBe(truncated);
  expect([asked, held.bytes]).toEqual([[], 0]);
});

test('a stream that is left before it was read is cancelled at its provider', async () => {
  const { stream, state } = brokenStream(said);
  const mended = mendStream(stream, mending({}));
  await mended.events[Symbol.asyncIterator]().return?.();
  expect(state.left).toBe(true);
  expect(await mended.done).toEqual(summary);
});
