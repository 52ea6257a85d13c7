import { GatewayError } from '#libs/kernel/errors.ts';
import type { Target } from '#libs/calls/call.ts';

/** Texts that must not appear in anything from the provider. */
export function getSecrets({ apiKey, secrets }: Target): string[] {
  const texts = apiKey ? [apiKey.reveal()] : [];
  for (const name in secrets) {
    const text = secrets[name]?.reveal();
    if (text !== undefined && text !== texts[0]) texts.push(text);
  }
  return texts;
}

/** A stored credential is only sent to the origin that it was stored for (SEC-2). */
export function checkOrigin({ secretOrigin, label }: Target, origin: string): void {
  if (secretOrigin === null || origin === secretOrigin) return;
  throw new GatewayError(
    'invalid_request',
    'credential_origin_mismatch',
    `The credential of ${label} is stored for ${secretOrigin} and cannot be sent to ${origin}. Store a credential for that host.`,
  );
}
