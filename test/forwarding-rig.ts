import { CallAbort } from '#libs/kernel/call-signal.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { ForwardRequest, StreamAnswer, StreamSummary, Target } from '#libs/calls/call.ts';
import { createEgress, type Egress } from '#libs/calls/upstream/egress/egress.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { createForwarder, type Forwarder } from './forwarder.ts';
import { startUpstream, type Upstream, type UpstreamScript } from './upstream.ts';

export const canary = 'sk-CANARY-0123456789abcdef';

export type ForwardingRig = {
  upstream: Upstream;
  egress: Egress;
  forwarder: Forwarder;
  target: Target;
  /** The waits of the retries, in order. They take no real time, but the clock moves. */
  waits: number[];
  now: () => number;
  stop: () => Promise<void>;
};

/**
 * A forwarder in front of a scripted upstream, with a clock that only moves by waits, and a random that is always 0.
 */
export async function startForwardingRig(
  script?: UpstreamScript | readonly UpstreamScript[],
  deps: Partial<Parameters<typeof createForwarder>[0]> = {},
): Promise<ForwardingRig> {
  const upstream = await startUpstream(script);
  const egress = createEgress({ allow: parseEgressAllow(`127.0.0.1:${upstream.port}`), connectTimeoutMs: 1_000 });
  const waits: number[] = [];
  let now = 1_700_000_000_000;
  const forwarder = createForwarder({
    egress,
    clock: { now: () => now },
    random: () => 0,
    sleep: (ms) => {
      waits.push(ms);
      now += ms;
      return Promise.resolve();
    },
    ...deps,
  });
  return {
    upstream,
    egress,
    forwarder,
    waits,
    now: () => now,
    target: {
      provider: 'openai',
      baseUrl: upstream.url,
      apiKey: new Secret(canary),
      settings: {},
      secrets: {},
      secretOrigin: upstream.url.origin,
      label: 'test-key',
    },
    stop: async () => {
      forwarder.stop();
      await egress.stop();
      await upstream.stop();
    },
  };
}

/** A chat request with this body text (not parsed, not serialised again). */
export function chatRequest(options: Partial<ForwardRequest> & { text?: string } = {}): ForwardRequest {
  const { text = '{"model":"gpt-test","messages":[{"role":"user","content":"hi"}]}', ...rest } = options;
  return {
    operation: 'chat',
    body: Buffer.from(text),
    model: 'gpt-test',
    stream: false,
    includeUsage: false,
    signal: new CallAbort(),
    ...rest,
  };
}

export const completion = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'gpt-test-2026',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hi', refusal: null }, finish_reason: 'stop' }],
  usage: {
    prompt_tokens: 12,
    completion_tokens: 7,
    total_tokens: 19,
    prompt_tokens_details: { cached_tokens: 4 },
    completion_tokens_details: { reasoning_tokens: 3 },
  },
};

/** Reads a stream to its end, or to the error that ended it. */
export async function readStream(
  answer: StreamAnswer,
): Promise<{ payloads: string[]; error: unknown; summary: StreamSummary }> {
  const payloads: string[] = [];
  let error: unknown = null;
  try {
    for await (const batch of answer.events) payloads.push(...batch);
  } catch (caught) {
    error = caught;
  }
  return { payloads, error, summary: await answer.done };
}

export const eventStream = { 'content-type': 'text/event-stream' };

/** One chunk of a chat stream. */
export const chunk = (delta: object, finish: string | null = null, index = 0): string =>
  JSON.stringify({
    id: 'c1',
    object: 'chat.completion.chunk',
    created: 1,
    model: 'm',
    choices: [{ index, delta, finish_reason: finish }],
    usage: null,
  });
export const usageChunk = JSON.stringify({
  id: 'c1',
  choices: [],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
});

/** A complete small stream: role, content, finish, usage. */
export const payloads = [
  chunk({ role: 'assistant', content: '' }),
  chunk({ content: 'né😀' }),
  chunk({}, 'stop'),
  usageChunk,
];

/** The bytes of an SSE body as one scripted answer, written unchanged. */
export const sse =
  (...writes: (string | Buffer)[]): UpstreamScript =>
  async (reply) => {
    reply.head(200, eventStream);
    for (const bytes of writes) await reply.write(bytes);
    reply.end();
  };
