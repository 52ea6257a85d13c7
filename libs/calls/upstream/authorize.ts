import type { Clock } from '#libs/kernel/clock.ts';
import type { OutboundRequest, Provider } from '#libs/providers/provider.ts';
import type { Target } from '#libs/calls/call.ts';
import { quickTimeouts } from '#libs/calls/timeouts.ts';
import type { Egress } from './egress.ts';
import { fetchWhole } from './fetch-whole.ts';
import type { Faults } from './provider-faults.ts';

type Tools = {
  egress: Egress;
  clock: Pick<Clock, 'now'>;
  signal: AbortSignal;
  faults: () => Faults;
  /** What no text of the provider may repeat; tokens are added. */
  secrets: string[];
};

// A token is small and made at once; the patience that a reasoning model needs would only hide a dead token server.
const tokenBytesMax = 1_048_576;

/** Lets the provider add what authorises a request, fetching a token where it needs one. Throws as the provider's `authorize`. */
export async function authorize(
  provider: Provider,
  outbound: OutboundRequest,
  target: Target,
  { egress, clock, signal, faults, secrets }: Tools,
): Promise<void> {
  await provider.authorize?.(outbound, target, {
    now: clock.now(),
    fetch: async (token) => {
      egress.check(new URL(token.origin)); // a key file may name the server
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
