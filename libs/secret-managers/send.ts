import type { Timeouts } from '#libs/calls/timeouts.ts';
import { fetchWhole } from '#libs/calls/upstream/egress/fetch-whole.ts';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { createLazyFaults } from '#libs/calls/upstream/provider-faults.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { SecretError } from './secret-error.ts';
import type { Send } from './secret-manager.ts';

/** Calls wait for this, so it is shorter than for a provider. */
const defaultTimeouts: Timeouts = { connectMs: 3_000, headersMs: 5_000, idleMs: 5_000, totalMs: 5_000 };
/** For the largest secret, with the rest of the answer. */
const answerBytesMax = 131_072;

/**
 * Sends requests to secret managers in the same way as calls to providers: the same rules for addresses, the same pools
 * and shares, no redirects; within 5 s, and at most 128 KiB of an answer.
 */
export function createSend({
  egress,
  signal,
  timeouts = defaultTimeouts,
}: {
  egress: Egress;
  /** Ends all running requests. */
  signal: AbortSignal;
  timeouts?: Timeouts;
}): Send {
  return async ({ slug, ownerId, secrets }, { url, method, headers, body = null }) => {
    const hidden = Object.values(secrets ?? {}).map((secret) => secret.reveal());
    try {
      egress.check(url);
      const { status, body: answer } = await fetchWhole(
        {
          method,
          origin: url.origin,
          path: url.pathname + url.search,
          headers: ['accept', 'application/json', ...headers, 'accept-encoding', 'identity', 'user-agent', 'sluice'],
          body,
        },
        {
          egress,
          timeouts,
          signal,
          workspaceId: ownerId,
          faults: createLazyFaults('its secret manager', hidden),
          bytesMax: answerBytesMax,
        },
      );
      return { status, body: answer };
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      // The operator can allow the address again. Until then, no request is sent.
      const fault = error.kind === 'invalid_request' ? 'denied' : 'unavailable';
      throw new SecretError(fault, slug, `cannot be fetched: ${error.message.replace(/\.$/, '')}`, error);
    }
  };
}
