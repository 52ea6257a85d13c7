import { hash } from 'node:crypto';
import type { Target } from '#libs/calls/call.ts';

/**
 * What a credential that came with a call is known by, in place of a virtual key's id: a digest of it and of where it
 * goes, within its workspace, so that what one workspace does with a key says nothing to another. It cannot be turned back.
 */
export function callerCredentialId(
  workspaceId: string,
  { provider, baseUrl, apiKey, settings, secrets }: Omit<Target, 'label' | 'secretOrigin'>,
): string {
  const others = Object.entries(secrets).map(([name, secret]) => [name, secret.reveal()]);
  const facts = [workspaceId, provider, baseUrl.href, apiKey?.reveal() ?? null, settings, others];
  return `own_${hash('sha256', JSON.stringify(facts), 'base64url').slice(0, 22)}`;
}
