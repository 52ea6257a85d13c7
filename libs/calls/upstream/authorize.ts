import type { CallSignal } from '#libs/kernel/call-signal.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { OutboundRequest, Provider } from '#libs/providers/provider.ts';
import type { Target } from '#libs/calls/call.ts';
import { quickTimeouts } from '#libs/calls/timeouts.ts';
import type { Egress } from './egress/egress.ts';
import { fetchWhole } from './egress/fetch-whole.ts';
import type { Faults } from './provider-faults.ts';

type Tools = {
  egress: Egress;
  clock: Pick<Clock, 'now'>;
  signal: CallSignal;
  faults: () => Faults;
  /** Texts that must not appear in anything from the provider. Tokens are added. */
  secrets: string[];
};

// A token is small and created immediately. A timeout as long as for a reasoning model would hide that a token server
// is down.
const tokenBytesMax = 1_048_576;

/**
 * Lets the provider add what authorises a request, and fetches a token if it needs one. Throws like the provider's
 * `authorize`.
 */
export async function authorize(
  provider: Provider,
  outbound: OutboundRequest,
  target: Target,
  { egress, clock, signal, faults, secrets }: Tools,
): Promise<void> {
  await provider.authorize?.(outbound, target, {
    now: clock.now(),
    fetch: async (token) => {
      egress.check(new URL(token.origin)); // The server can come from a key file.
      const { workspaceId } = target;
      return fetchWhole(token, {
        egress,
        timeouts: quickTimeouts,
        signal,
        faults,
        workspaceId,
        bytesMax: tokenBytesMax,
      });
    },
    keepSecret: (text) => void secrets.push(text),
  });
}
