import { defaultLimits } from '#libs/calls/call.ts';
import { EventStream } from '#libs/calls/upstream/answers/streams/event-stream.ts';
import { createLazyFaults } from '#libs/calls/upstream/provider-faults.ts';
import { openSseFraming } from '#libs/calls/upstream/answers/streams/sse-framing.ts';
import { chatDialect } from '#libs/providers/chat/index.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call, StreamEvent, Translation } from '#libs/providers/provider.ts';

export type Replayed = {
  payloads: string[];
  /** The code of the error that ended it, also of one that no client has seen a byte before. */
  error: string | null;
};

/** A chat call as the core makes it of these bytes. */
export function toCall(body: Buffer, options: { strict?: boolean; includeUsage?: boolean } = {}): Call {
  const json = JSON.parse(body.toString()) as Record<string, unknown>;
  return {
    operation: 'chat',
    dialect: chatDialect,
    model: (json['model'] as string | undefined) ?? '',
    body,
    edits: {},
    json: () => ({ ...json }),
    stream: true,
    includeUsage: options.includeUsage ?? true,
    strict: options.strict ?? true,
    resources: new Map(),
    headers: {},
  };
}

/** Plays buffers through the core's reading of a stream, without a socket: what `forward` does with them, a thousand times faster. */
export async function replay(translation: Translation, call: Call, buffers: Iterable<Buffer>): Promise<Replayed> {
  const faults = createLazyFaults('replayed', []);
  let finished = false;
  const flow = {
    pause: () => {},
    resume: () => {},
    abort: () => {},
    answered: () => {},
    finish: () => {
      finished = true;
    },
  };
  const stream = new EventStream({
    call,
    usedBy: { request: { operation: 'chat', body: call.body }, target: { secretOrigin: '' } },
    translation,
    flow,
    faults,
    limits: { ...defaultLimits, bufferedCharsMax: Number.POSITIVE_INFINITY },
    idleMs: 600_000,
    startedAt: performance.now(),
  });
  stream.first.catch(() => {}); // read below
  try {
    for (const buffer of buffers) if (!finished) stream.data(buffer);
    if (!finished) stream.end();
  } catch (error) {
    stream.fail(error instanceof GatewayError ? error : faults().unreadable(error));
  }
  const payloads: string[] = [];
  try {
    const first = await stream.first;
    if (first.kind === 'error') return { payloads, error: first.error.error.code ?? 'upstream_error' };
    for await (const batch of first.answer.events) payloads.push(...batch);
    return { payloads, error: null };
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return { payloads, error: error.code };
  }
}

/** The events that a translation's framing finds in bytes that arrive in two pieces. */
export function frameInTwo(translation: Translation, bytes: Buffer, at: number): StreamEvent[] {
  const events: StreamEvent[] = [];
  const onEvent = ({ event, data }: StreamEvent): void => void events.push({ event, data });
  const framing =
    translation.openFraming?.(onEvent, defaultLimits.eventCharsMax) ??
    openSseFraming({
      onEvent,
      onComment: () => {},
      eventCharsMax: defaultLimits.eventCharsMax,
      tooLarge: () => new Error('too large'),
    });
  framing.push(bytes.subarray(0, at));
  framing.push(bytes.subarray(at));
  framing.end();
  return events;
}
