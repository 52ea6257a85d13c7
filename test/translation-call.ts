import { chatDialect } from '#libs/providers/chat/index.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { Call, OutboundRequest, Provider, StreamDecoder, Upstream } from '#libs/providers/provider.ts';

/** Returns a call as the core makes one, for tests of a single translation. */
export function translationCall(body: object, options: Partial<Call> = {}): Call {
  return {
    operation: 'chat',
    dialect: chatDialect,
    model: (body as { model?: string }).model ?? '',
    body: Buffer.from(JSON.stringify(body)),
    edits: {},
    json: () => structuredClone(body) as Record<string, unknown>,
    stream: false,
    includeUsage: true,
    strict: true,
    resources: new Map(),
    headers: {},
    ...options,
  };
}

export const upstreamAt = (baseUrl: string, more: Partial<Upstream> = {}): Upstream => ({
  baseUrl: new URL(baseUrl),
  apiKey: new Secret('sk-test-0123456789'),
  settings: {},
  secrets: {},
  ...more,
});

/** The request that a provider's chat translation makes of a call, with its body parsed and its headers by name. */
export function encodeChat(
  provider: Provider,
  call: Call,
  upstream: Upstream,
): {
  outbound: OutboundRequest;
  headers: Record<string, string>;
  body: Record<string, unknown>;
  dropped: readonly string[];
} {
  const outbound = provider.operations.chat?.encode(call, upstream);
  if (!outbound) throw new Error(`${provider.id} has no chat`);
  const pairs = outbound.headers.flatMap((name, index, all) => (index % 2 === 0 ? [[name, all[index + 1] ?? '']] : []));
  return {
    outbound,
    headers: Object.fromEntries(pairs) as Record<string, string>,
    body: JSON.parse(bytesOf(outbound).toString()) as Record<string, unknown>,
    dropped: outbound.dropped ?? [],
  };
}

/** The bytes of a request's body. A test with any other kind of body fails. */
export function bytesOf({ body }: OutboundRequest): Buffer {
  if (!(body instanceof Uint8Array)) throw new Error('the request has no bytes as its body');
  return Buffer.from(body);
}

/** Everything that a decoder returns for these events, up to its end. */
export function decodeAll(
  decoder: StreamDecoder,
  events: readonly { event?: string; data: string }[],
): { chunks: Record<string, unknown>[]; done: boolean; error: unknown } {
  const chunks: Record<string, unknown>[] = [];
  for (const event of events) {
    const { payloads, done, error } = decoder.push(event);
    chunks.push(...payloads.map((payload) => JSON.parse(payload) as Record<string, unknown>));
    if (done || error) return { chunks, done: done ?? false, error: error ?? null };
  }
  return { chunks, done: false, error: null };
}
