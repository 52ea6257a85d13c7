import { createHmac, randomBytes } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { startExchange } from '#libs/calls/upstream/egress/exchange.ts';
import { createLazyFaults } from '#libs/calls/upstream/provider-faults.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';

/** Secrets have the form of Standard Webhooks: `whsec_` and base64. */
const secretPrefix = 'whsec_';

/** A new signing secret, of 192 random bits. */
export const createSigningSecret = (): Secret => new Secret(secretPrefix + randomBytes(24).toString('base64'));

const timeouts = { connectMs: 5_000, headersMs: 10_000, idleMs: 10_000, totalMs: 15_000 };

export type SignedMessage = {
  /** Stays the same when the message is repeated, so that a receiver recognises a repetition. */
  id: string;
  body: string;
  url: URL;
  /** Each one makes a signature, so that a receiver can check with any of them. */
  secrets: readonly Secret[];
  workspaceId: string;
};

/**
 * Sends a message to a webhook: a POST signed as Standard Webhooks 1.0 requires, through the egress, without redirects. Ignores
 * the body of the answer. Throws GatewayError if no answer arrives or the address is not allowed.
 */
export async function postSigned(
  { egress, nowMs, label, signal }: { egress: Egress; nowMs: number; label: string; signal: AbortSignal },
  { id, body, url, secrets, workspaceId }: SignedMessage,
): Promise<{ status: number; headers: IncomingHttpHeaders }> {
  const timestamp = String(Math.floor(nowMs / 1_000));
  const signatures = secrets.map((secret) => `v1,${sign(secret, `${id}.${timestamp}.${body}`)}`);
  const headers = {
    'content-type': 'application/json',
    'accept-encoding': 'identity',
    'user-agent': 'sluice',
    'webhook-id': id,
    'webhook-timestamp': timestamp,
    'webhook-signature': signatures.join(' '),
  };
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
      headers: Object.entries(headers).flat(),
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

const sign = (secret: Secret, text: string): string =>
  createHmac('sha256', Buffer.from(secret.reveal().slice(secretPrefix.length), 'base64'))
    .update(text)
    .digest('base64');
