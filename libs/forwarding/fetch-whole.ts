import type { IncomingHttpHeaders } from 'node:http';
import type { Timeouts } from './answer.ts';
import type { Egress } from './egress.ts';
import { startExchange, type Sendable } from './exchange.ts';
import type { Faults } from './provider-faults.ts';

type Options = { egress: Egress; timeouts: Timeouts; signal: AbortSignal; faults: () => Faults; bytesMax: number };

/**
 * Makes one request beside the calls (a token, an image, a training file) and reads the answer whole, whatever its status. No retries, no
 * redirects. Throws GatewayError: provider_failed, provider_timeout, `call_aborted`.
 */
export function fetchWhole(
  outbound: Sendable,
  { egress, timeouts, signal, faults, bytesMax }: Options,
): Promise<{ status: number; headers: IncomingHttpHeaders; body: Buffer }> {
  const { promise, resolve, reject } = Promise.withResolvers<{
    status: number;
    headers: IncomingHttpHeaders;
    body: Buffer;
  }>();
  const chunks: Buffer[] = [];
  let bytes = 0;
  let status = 0;
  let headers: IncomingHttpHeaders = {};
  startExchange(
    egress,
    outbound,
    { timeouts, signal, faults },
    {
      head: (code, received) => {
        status = code;
        headers = received;
        if (code >= 300 && code < 400) throw faults().redirect(code);
      },
      data: (chunk) => {
        bytes += chunk.length;
        if (bytes > bytesMax) throw faults().tooLarge('a body', bytesMax);
        chunks.push(chunk);
      },
      end: () => resolve({ status, headers, body: Buffer.concat(chunks, bytes) }),
      fail: reject,
    },
  );
  return promise;
}
