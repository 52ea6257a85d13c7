import type { Target } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { callerCredentialId } from './caller-credential-id.ts';
import { unknownVirtualKeyCode, type Credential } from './choose-credential.ts';
import { unknownConfigCode } from './no-such-config.ts';
import type { LiveVirtualKey } from './load-access.ts';
import { slugOfModel } from './request-credentials.ts';

/** `model` is what the provider is asked for: without the slug of `@slug/model`. */
export type ResolvedTarget = { target: Target; model: string | null };

/** The target of a credential for a body's model; the slug in it, which had its say before, is taken off. */
export function targetOfCredential(
  credential: Exclude<Credential, { type: 'none' }>,
  model: string | null,
  workspaceId: string,
): ResolvedTarget {
  if (credential.type === 'virtual_key') return targetOfVirtualKey(credential.key, model);
  const { provider, baseUrl, apiKey, settings, secrets } = credential;
  const own = { provider, baseUrl, apiKey, settings, secrets };
  const credentialId = callerCredentialId(workspaceId, own);
  const target: Target = { ...own, secretOrigin: null, label: provider, credentialId, workspaceId };
  return { target, model: slugOfModel(model)?.model ?? model };
}

/** Runs `look`; when it misses a virtual key or a config, refreshes the snapshot and runs it again. */
export function withSecondLook<Result>(
  snapshot: Pick<AccessSnapshot, 'refresh'>,
  look: () => Result,
): Result | Promise<Result> {
  try {
    return look();
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    if (error.code !== unknownVirtualKeyCode && error.code !== unknownConfigCode) throw error;
  }
  return snapshot.refresh().then(look, (cause: unknown) => {
    throw new GatewayError(
      'unavailable',
      'access_unavailable',
      'The virtual key or config cannot be looked up because the database is temporarily unavailable. Try again shortly.',
      { retryAfterMs: 1_000, cause },
    );
  });
}

/** The target of a virtual key for a body's model, from which the slug is taken off. */
export function targetOfVirtualKey(key: LiveVirtualKey, model: string | null): ResolvedTarget {
  if (!key.baseUrl) {
    throw new GatewayError(
      'unsupported_operation',
      'provider_not_supported',
      `The provider '${key.provider}' of the virtual key '${key.slug}' is not supported by this release.`,
    );
  }
  if (!key.secrets) {
    throw new GatewayError(
      'unavailable',
      'virtual_key_unreadable',
      `The stored credential of the virtual key '${key.slug}' cannot be decrypted. Store it again with ` +
        `PUT /v1/virtual-keys/${key.slug}.`,
    );
  }
  const target: Target = {
    provider: key.provider,
    baseUrl: key.baseUrl,
    apiKey: key.apiKey,
    settings: key.settings,
    secrets: key.secrets,
    secretOrigin: key.baseUrl.origin,
    label: key.slug,
    credentialId: key.id,
    workspaceId: key.workspaceId,
  };
  const named = slugOfModel(model);
  if (!named) return { target, model };
  target.model = named.model;
  return { target, model: named.model };
}
