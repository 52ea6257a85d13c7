import type { Usage } from '#libs/prices/usage.ts';
import type { Answer, ForwardRequest, JsonAnswer, StreamAnswer } from '#libs/calls/call.ts';
import type { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { Operation } from '#libs/providers/provider.ts';
import { canary, readStream, startForwardingRig } from '#test/forwarding-rig.ts';
import type { UpstreamRequest, UpstreamScript } from '#test/upstream.ts';
import type { ConformanceCase, Json, Lines, Whole } from './conformance-case.ts';
import type { Chunk } from './read-answer.ts';
import { framesOf, wholeBytes } from './payloads.ts';

type CallOptions = {
  stream?: boolean;
  operation?: Operation;
  includeUsage?: boolean;
  strict?: boolean;
  unsupportedParams?: 'drop' | 'refuse';
};

export type StreamRead = { payloads: string[]; chunks: Chunk[]; error: unknown; usage: Usage | null };

/** One provider in front of a scripted server, called as the routes call it: through the real core, over HTTP. */
export type ConformanceClient = {
  /** The next requests are answered so, in turn; the last script repeats. Forgets the requests before. */
  play: (...scripts: UpstreamScript[]) => void;
  /** Calls that the provider got since `play`, tokens and the like left out. */
  requests: () => readonly UpstreamRequest[];
  sent: (index?: number) => Json;
  /** Also an error that the provider answered with is a JSON answer. */
  whole: (request: Json, options?: CallOptions) => Promise<JsonAnswer>;
  /** Reads the stream to its end or error. */
  stream: (request: Json, options?: CallOptions) => Promise<StreamRead>;
  /** The error that a call throws. */
  refusal: (request: Json, options?: CallOptions) => Promise<GatewayError>;
  now: () => number;
  stop: () => Promise<void>;
};

export async function startConformanceClient(conformanceCase: ConformanceCase): Promise<ConformanceClient> {
  const { provider, model, folder, settings = {}, secrets, beside, apiKey = canary } = conformanceCase;
  const rig = await startForwardingRig();
  const { upstream, forwarder } = rig;
  const target = {
    ...rig.target,
    provider,
    baseUrl: new URL(folder || '/', upstream.url),
    apiKey: apiKey === null ? null : new Secret(apiKey),
    settings,
    secrets: Object.fromEntries(
      Object.entries(secrets?.(upstream.url) ?? {}).map(([name, value]) => [name, new Secret(value)]),
    ),
  };
  let requests: UpstreamRequest[] = [];

  const toRequest = (request: Json, options: CallOptions): ForwardRequest => {
    const { operation = 'chat', includeUsage = true, stream = false, ...rest } = options;
    const chat = operation === 'chat' ? { messages: [{ role: 'user', content: 'Hello' }] } : {};
    const usage = includeUsage ? { stream_options: { include_usage: true } } : {};
    const body = { model, ...chat, ...request, ...(stream ? { stream: true, ...usage } : {}) };
    return {
      operation,
      body: operation === 'models' ? Buffer.alloc(0) : Buffer.from(JSON.stringify(body)),
      model: operation === 'models' ? null : body.model,
      stream,
      includeUsage: stream && includeUsage,
      signal: new AbortController().signal,
      ...rest,
    };
  };
  const call = (request: Json, options: CallOptions = {}): Promise<Answer> =>
    forwarder.forward(toRequest(request, options), target);

  return {
    play: (...scripts) => {
      requests = [];
      upstream.script((reply, request) => {
        const answer = beside?.(request);
        if (answer) return reply.json(200, answer);
        requests.push(request);
        const next = scripts.length > 1 ? scripts.shift() : scripts[0];
        return next?.(reply, request);
      });
    },
    requests: () => requests,
    sent: (index = 0) => JSON.parse(requests[index]?.body.toString() ?? 'null') as Json,
    whole: async (request, options) => {
      const answer = await call(request, options);
      if (answer.kind !== 'json') throw new Error('a stream instead of JSON');
      return answer;
    },
    stream: async (request, options) => {
      const answer = await call(request, { ...options, stream: true });
      if (answer.kind !== 'stream') throw new Error(`no stream but ${answer.kind} ${answer.status}`);
      return readChunksOf(answer);
    },
    refusal: (request, options) =>
      call(request, options).then(
        () => {
          throw new Error('the call was not refused');
        },
        (error: GatewayError) => error,
      ),
    now: rig.now,
    stop: rig.stop,
  };
}

async function readChunksOf(answer: StreamAnswer): Promise<StreamRead> {
  const { payloads, error } = await readStream(answer);
  const { usage } = await answer.done;
  return { payloads, error, usage, chunks: payloads.map((payload) => JSON.parse(payload) as Chunk) };
}

/** The provider answers with this body. */
export const answering =
  (source: Whole, status = 200, headers: Readonly<Record<string, string>> = {}): UpstreamScript =>
  (reply) => {
    reply.respond(status, wholeBytes(source), { 'content-type': 'application/json', ...headers });
  };

/** The provider streams these events; `cutAt` sends so many bytes first and the rest, or an end, after. */
export const streaming =
  (
    { wire }: Pick<ConformanceCase, 'wire'>,
    source: Lines,
    { splitAt, truncateAt, drop = false }: { splitAt?: number; truncateAt?: number; drop?: boolean } = {},
  ): UpstreamScript =>
  async (reply) => {
    const bytes = Buffer.concat(framesOf(wire, source));
    reply.head(200, { 'content-type': wire.contentType });
    const pieces =
      truncateAt !== undefined
        ? [bytes.subarray(0, truncateAt)]
        : splitAt !== undefined
          ? [bytes.subarray(0, splitAt), bytes.subarray(splitAt)]
          : [bytes];
    for (const piece of pieces) if (piece.length > 0) await reply.write(piece);
    if (drop) reply.cut();
    else reply.end();
  };
