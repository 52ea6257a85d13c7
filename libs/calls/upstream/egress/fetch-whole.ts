import type { IncomingHttpHeaders } from 'node:http';
import type { CallSignal } from '#libs/kernel/call-signal.ts';
import type { OutboundRequest } from '#libs/providers/provider.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { Egress } from './egress.ts';
import { startExchange } from './exchange.ts';
import type { Faults } from '../provider-faults.ts';

export type FetchOptions = {
  egress: Egress;
  /** The workspace whose share of the connections it uses. */
  workspaceId: string | undefined;
  timeouts: Timeouts;
  signal: CallSignal;
  faults: () => Faults;
  bytesMax: number;
  onBytes?: (bytes: number) => void;
};

type WholeAnswer = { status: number; headers: IncomingHttpHeaders; body: Buffer };

/**
 * Makes one auxiliary request of a call (a token, an image) and reads the whole answer, whatever its status. No
 * retries, no redirects. Throws GatewayError: provider_failed, provider_timeout, `call_aborted`, or the errors of
 * `onBytes`, which is called with the size of every piece that arrives.
 */
export function fetchWhole(
  outbound: OutboundRequest,
  { egress, timeouts, signal, faults, bytesMax, onBytes, workspaceId }: FetchOptions,
): Promise<WholeAnswer> {
  const { promise, resolve, reject } = Promise.withResolvers<WholeAnswer>();
  const chunks: Buffer[] = [];
  let bytes = 0;
  let status = 0;
  let headers: IncomingHttpHeaders = {};
  startExchange(
    egress,
    outbound,
    { timeouts, signal, faults, workspaceId },
    {
      head: (code, received) => {
        status = code;
        headers = received;
      },
      data: (chunk) => {
        bytes += chunk.length;
        onBytes?.(chunk.length);
        if (bytes > bytesMax) throw faults().tooLarge('a body', bytesMax);
        chunks.push(chunk);
      },
      end: () => resolve({ status, headers, body: Buffer.concat(chunks, bytes) }),
      fail: reject,
    },
  );
  return promise;
}
