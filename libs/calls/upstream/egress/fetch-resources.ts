import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { Resource } from '#libs/providers/turns/media.ts';
import { quickTimeouts as timeouts } from '#libs/calls/timeouts.ts';
import type { Egress } from './egress.ts';
import { fetchWhole, type FetchOptions } from './fetch-whole.ts';
import { createLazyFaults } from '../provider-faults.ts';

const countMax = 20;
/**
 * The maximum for one resource: the largest image that providers accept as bytes (Bedrock 3.75 MB, documents 4.5 MB).
 */
const bytesMax = 5_242_880;
/** The maximum for all resources of one call: providers that need bytes refuse larger requests (Bedrock 25 MB). */
const allBytesMax = 26_214_400;
/** The bytes, their base64 in the request that is made with them, and their copy in the text of that request. */
const copies = 3;

/**
 * Fetches the images that a request refers to by URL, for a provider that only accepts bytes. Uses the same egress as
 * every call, without any credential. Throws invalid_request / `resource_unavailable` with the URL's host.
 */
export async function fetchResources(
  urls: readonly string[],
  {
    egress,
    signal,
    workspaceId,
    memory,
  }: { egress: Egress; signal: AbortSignal; workspaceId: string | undefined; memory: MemoryLease | undefined },
): Promise<ReadonlyMap<string, Resource>> {
  const unique = [...new Set(urls)];
  if (unique.length > countMax) {
    throw new GatewayError(
      'invalid_request',
      'too_many_resources',
      `The messages refer to ${unique.length} files by URL. One call can refer to at most ${countMax}.`,
      { param: 'messages' },
    );
  }
  let bytes = 0;
  const onBytes = (more: number): void => {
    bytes += more;
    if (bytes > allBytesMax)
      throw unavailable(`Together, the files are larger than the limit of ${allBytesMax} bytes.`);
    memory?.charge(copies * more);
  };
  // The first failure ends the other fetches.
  const failing = new AbortController();
  const ended = AbortSignal.any([signal, failing.signal]);
  try {
    const options = { egress, signal: ended, workspaceId, timeouts, bytesMax, onBytes };
    const fetched = unique.map(async (text) => [text, await fetchOne(text, options)] as const);
    return new Map(await Promise.all(fetched));
  } finally {
    failing.abort();
  }
}

async function fetchOne(text: string, options: Omit<FetchOptions, 'faults'>): Promise<Resource> {
  if (!URL.canParse(text)) throw unavailable('Its URL is not valid.');
  const url = new URL(text);
  options.egress.check(url);
  const outbound = {
    method: 'GET' as const,
    origin: url.origin,
    path: url.pathname + url.search,
    headers: ['accept-encoding', 'identity', 'user-agent', 'sluice'],
    body: null,
  };
  try {
    const { status, headers, body } = await fetchWhole(outbound, {
      ...options,
      faults: createLazyFaults(url.host, []),
    });
    if (status !== 200) throw unavailable(`${url.host} returned status ${status}.`);
    return { contentType: (headers['content-type'] ?? '').split(';', 1)[0]?.trim() ?? '', bytes: body };
  } catch (error) {
    if (!(error instanceof GatewayError) || error.kind === 'invalid_request' || error.kind === 'unavailable')
      throw error;
    throw unavailable(error.message, error);
  }
}

const unavailable = (why: string, cause?: unknown): GatewayError =>
  new GatewayError(
    'invalid_request',
    'resource_unavailable',
    `A file that the messages refer to by URL could not be fetched. ${why} Send its bytes as a data: URL instead.`,
    { param: 'messages', ...(cause === undefined ? {} : { cause }) },
  );
