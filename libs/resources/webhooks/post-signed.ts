import { createHmac, randomBytes } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { postBody } from '#libs/calls/upstream/post-body.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';

/** Secrets have the form of Standard Webhooks: `whsec_` and base64. */
const secretPrefix = 'whsec_';

/** A new signing secret, of 192 random bits. */
export const createSigningSecret = (): Secret => new Secret(secretPrefix + randomBytes(24).toString('base64'));

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
    'webhook-id': id,
    'webhook-timestamp': timestamp,
    'webhook-signature': signatures.join(' '),
  };
  return await postBody({ egress, label, signal, secrets }, { url, headers, body, workspaceId });
}

const sign = (secret: Secret, text: string): string =>
  createHmac('sha256', Buffer.from(secret.reveal().slice(secretPrefix.length), 'base64'))
    .update(text)
    .digest('base64');
