import type { IncomingHttpHeaders } from 'node:http';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { Egress } from './egress/egress.ts';
import { startExchange } from './egress/exchange.ts';
import { createLazyFaults } from './provider-faults.ts';

const timeouts = { connectMs: 5_000, headersMs: 10_000, idleMs: 10_000, totalMs: 15_000 };

/**
 * Sends a body with a POST through the egress, without redirects, and ignores the body of the answer. `label` names the
 * receiver in errors, which do not contain `secrets`. Throws GatewayError if no answer arrives or the address is not allowed.
 */
export async function postBody(
  {
    egress,
    label,
    signal,
    secrets,
  }: { egress: Egress; label: string; signal: AbortSignal; secrets: readonly Secret[] },
  request: { url: URL; headers: Readonly<Record<string, string>>; body: string; workspaceId: string | undefined },
): Promise<{ status: number; headers: IncomingHttpHeaders }> {
  const { url, headers, body, workspaceId } = request;
  egress.check(url);
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; headers: IncomingHttpHeaders }>();
  const faults = createLazyFaults(
    label,
    secrets.map((secret) => secret.reveal()),
  );
  startExchange(
    egress,
    {
      method: 'POST',
      origin: url.origin,
      path: url.pathname + url.search,
      headers: Object.entries({ 'accept-encoding': 'identity', 'user-agent': 'sluice', ...headers }).flat(),
      body: Buffer.from(body),
    },
    { timeouts, signal, workspaceId, faults },
    {
      head(status, received, flow) {
        flow.finish();
        resolve({ status, headers: received });
      },
      data() {},
      end() {},
      fail: reject,
    },
  );
  return await promise;
}
