import { hash } from 'node:crypto';
import type { Target } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { unknownVirtualKeyCode, type Credential } from './choose-credential.ts';
import { unknownPartialCode, unknownPromptCode } from './find-prompts.ts';
import { unknownConfigCode } from '#libs/credentials/no-such-config.ts';
import { settingsForModel } from '#libs/credentials/deployments.ts';
import type { LiveCredential } from '#libs/resources/stored-credential.ts';
import { unknownGuardrailCode } from '#libs/credentials/no-such-guardrail.ts';
import { slugOfModel } from './request-credentials.ts';

/** `model` is what the provider is asked for: without the slug of `@slug/model`. */
export type ResolvedTarget = { target: Target; model: string | null };

/** The target of a credential for a body's model, without the slug in it: it was used to choose the credential. */
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

/** What may have been made elsewhere a moment ago. */
const missingCodes: ReadonlySet<string | null> = new Set([
  unknownVirtualKeyCode,
  unknownConfigCode,
  unknownGuardrailCode,
  unknownPromptCode,
  unknownPartialCode,
]);

/**
 * Runs `find`; when it misses a virtual key, a config, a guardrail or a prompt, refreshes the snapshot and runs it again: another process may have
 * created it a moment ago. Throws what `find` throws, and unavailable when the database does not answer.
 */
export function withRefresh<Result>(
  snapshot: Pick<AccessSnapshot, 'refresh'>,
  find: () => Result | Promise<Result>,
): Result | Promise<Result> {
  try {
    return find();
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    if (!missingCodes.has(error.code)) throw error;
  }
  return snapshot.refresh().then(find, (cause: unknown) => {
    throw new GatewayError(
      'unavailable',
      'access_unavailable',
      'The virtual key, config, guardrail or prompt cannot be looked up because the database is temporarily unavailable. Try again shortly.',
      { retryAfterMs: 1_000, cause },
    );
  });
}

/**
 * The target of a virtual key for a body's model, without the slug in it. Throws when this process cannot use the key.
 * @testOnly
 */
export function targetOfVirtualKey(key: LiveCredential, model: string | null): ResolvedTarget {
  if (!key.baseUrl) {
    throw new GatewayError(
      'unsupported_operation',
      'provider_not_supported',
      `The provider '${key.provider}' of the ${key.noun} '${key.slug}' is not supported by this release.`,
    );
  }
  if (!key.secrets) {
    throw new GatewayError(
      'unavailable',
      'virtual_key_unreadable',
      `The stored credential of the ${key.noun} '${key.slug}' cannot be decrypted. Store it again with ` +
        (key.integration === undefined
          ? `PUT /v1/virtual-keys/${key.slug}.`
          : `PUT /v1/integrations/${key.integration}.`),
    );
  }
  const named = slugOfModel(model);
  const target: Target = {
    provider: key.provider,
    baseUrl: key.baseUrl,
    apiKey: key.apiKey,
    settings: settingsForModel(key, named?.model ?? model),
    secrets: key.secrets,
    secretOrigin: key.baseUrl.origin,
    label: key.slug,
    credentialId: key.id,
    workspaceId: key.workspaceId,
  };
  if (key.integration !== undefined) target.integration = key.integration;
  if (key.sharedAccount !== undefined) target.sharedAccount = key.sharedAccount;
  if (key.models !== undefined) target.models = key.models;
  if (!named) return { target, model };
  target.model = named.model;
  return { target, model: named.model };
}

/**
 * Identifies a credential that came with a call, as its id identifies a virtual key: a digest of the credential, its
 * destination and the workspace, so that one workspace learns nothing about another's use of the same key. The digest cannot
 * be reversed.
 */
function callerCredentialId(
  workspaceId: string,
  { provider, baseUrl, apiKey, settings, secrets }: Omit<Target, 'label' | 'secretOrigin'>,
): string {
  const others = Object.entries(secrets).map(([name, secret]) => [name, secret.reveal()]);
  const facts = [workspaceId, provider, baseUrl.href, apiKey?.reveal() ?? null, settings, others];
  return `own_${hash('sha256', JSON.stringify(facts), 'base64url').slice(0, 22)}`;
}
