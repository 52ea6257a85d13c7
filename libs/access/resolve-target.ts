import type { Target } from '#libs/forwarding/answer.ts';
import type { CallerDefaults } from '#libs/http/caller.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { chooseCredential, missingCredentials, unknownVirtualKeyCode } from './choose-credential.ts';
import type { LiveVirtualKey } from './load-access.ts';
import { slugOfModel, type RequestCredentials } from './request-credentials.ts';

export type TargetRequest = {
  workspaceId: string;
  credentials: RequestCredentials;
  /** The body's model; null for calls without one. */
  model: string | null;
  defaults: Pick<CallerDefaults, 'configId'>;
};

/** `model` is what the provider is asked for: without the slug of `@slug/model`. */
export type ResolvedTarget = { target: Target; model: string | null };

export type ResolveTarget = (request: TargetRequest) => ResolvedTarget | Promise<ResolvedTarget>;

/**
 * Where a live call goes and with what. Synchronous and without the database when the snapshot has the virtual key;
 * one that it lacks is looked for once more, since it may have been created elsewhere a moment ago.
 * Throws invalid_request with the header or parameter at fault, `unavailable` when that look fails.
 */
export function createResolveTarget(deps: {
  snapshot: Pick<AccessSnapshot, 'findVirtualKey' | 'refresh'>;
  clock: Clock;
}): ResolveTarget {
  const resolve = ({ workspaceId, credentials, model, defaults }: TargetRequest): ResolvedTarget => {
    const named = slugOfModel(model);
    const credential = chooseCredential(deps, workspaceId, credentials, defaults, named?.slug ?? null);
    switch (credential.type) {
      case 'none':
        throw missingCredentials();
      case 'virtual_key':
        return targetOfVirtualKey(credential.key, model);
      case 'provider': {
        const { provider, baseUrl, apiKey } = credential;
        return {
          target: { provider, baseUrl, apiKey, settings: {}, secrets: {}, secretOrigin: null, label: provider },
          model,
        };
      }
    }
  };
  return (request) => withSecondLook(deps.snapshot, () => resolve(request));
}

/** Runs `look`; when it misses a virtual key, refreshes the snapshot and runs it again. */
export function withSecondLook<Result>(
  snapshot: Pick<AccessSnapshot, 'refresh'>,
  look: () => Result,
): Result | Promise<Result> {
  try {
    return look();
  } catch (error) {
    if (!(error instanceof GatewayError) || error.code !== unknownVirtualKeyCode) throw error;
  }
  return snapshot.refresh().then(look, (cause: unknown) => {
    throw new GatewayError(
      'unavailable',
      'access_unavailable',
      'The virtual key cannot be looked up now, because the database does not answer; try again.',
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
      `The provider '${key.provider}' of the virtual key '${key.slug}' is not supported by this version.`,
    );
  }
  if (!key.secrets) {
    throw new GatewayError(
      'unavailable',
      'virtual_key_unreadable',
      `The stored credential of the virtual key '${key.slug}' cannot be read: store it again with ` +
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
  };
  const named = slugOfModel(model);
  if (!named) return { target, model };
  target.model = named.model;
  return { target, model: named.model };
}
