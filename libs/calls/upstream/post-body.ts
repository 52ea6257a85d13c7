import type { IncomingHttpHeaders } from 'node:http';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { OutboundRequest } from '#libs/providers/provider.ts';
import type { Egress } from './egress/egress.ts';
import { startExchange } from './egress/exchange.ts';
import { fetchWhole } from './egress/fetch-whole.ts';
import { createLazyFaults } from './provider-faults.ts';

const timeouts = { connectMs: 5_000, headersMs: 10_000, idleMs: 10_000, totalMs: 15_000 };

type Answer = { status: number; headers: IncomingHttpHeaders; body?: Buffer };

/**
 * Sends a body with a POST through the egress, without redirects. The body of the answer is ignored, unless
 * `answerBytesMax` is given. `label` names the receiver in errors, which do not contain `secrets`. Throws GatewayError if
 * no answer arrives, if it is larger than `answerBytesMax`, or if the address is not allowed.
 */
export async function postBody(
  {
    egress,
    label,
    signal,
    secrets,
  }: { egress: Egress; label: string; signal: AbortSignal; secrets: readonly Secret[] },
  request: {
    url: URL;
    headers: Readonly<Record<string, string>>;
    body: string;
    workspaceId: string | undefined;
    answerBytesMax?: number | undefined;
  },
): Promise<Answer> {
  const { url, headers, body, workspaceId, answerBytesMax } = request;
  egress.check(url);
  const faults = createLazyFaults(
    label,
    secrets.map((secret) => secret.reveal()),
  );
  const outbound: OutboundRequest = {
    method: 'POST',
    origin: url.origin,
    path: url.pathname + url.search,
    headers: Object.entries({ 'accept-encoding': 'identity', 'user-agent': 'sluice', ...headers }).flat(),
    body: Buffer.from(body),
  };
  const options = { timeouts, signal, workspaceId, faults };
  if (answerBytesMax !== undefined) return await fetchWhole(outbound, { ...options, egress, bytesMax: answerBytesMax });
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  startExchange(egress, outbound, options, {
    head(status, received, flow) {
      flow.finish();
      resolve({ status, headers: received });
    },
    data() {},
    end() {},
    fail: reject,
  });
  return await promise;
}
