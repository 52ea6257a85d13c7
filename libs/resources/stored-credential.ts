import type { AllowedModels } from '#libs/calls/call.ts';
import { portkeySettings } from '#libs/contracts/virtual-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import { findProvider } from '#libs/providers/registry.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import { checkHost } from '#libs/targets/custom-host.ts';
import { authenticates, changedDestination, lastFourOf, splitSettings } from '#libs/targets/provider-settings.ts';
import { unknownProvider } from '#libs/targets/unknown-provider.ts';
import type { CheckContext } from './define-resource.ts';

/** Kinds whose slugs are names of credentials for calls: no two of one workspace have the same. */
export const credentialKinds = ['virtual_key', 'provider'] as const;

/** A provider's credential as its record has it. The credential itself is a row of `secret`, never in an event. */
export type StoredCredential = {
  provider: string;
  /** Canonical (libs/targets/custom-host.ts); null for the provider's own address. */
  custom_host: string | null;
  /** The provider's settings that are no secrets. */
  settings: Record<string, string>;
  /** null for a server that asks for no credential. */
  secret_id: string | null;
  secret_last_four: string;
};

/** A provider's credential in memory. */
export type OpenCredential = {
  readonly provider: string;
  /** Canonical; null for the provider's own address. */
  readonly customHost: string | null;
  /** Where calls go; null when this process does not know the provider (a newer release stored it). */
  readonly baseUrl: URL | null;
  readonly settings: Readonly<Record<string, string>>;
  readonly apiKey: Secret | null;
  /** Decrypted; null when the stored row does not open. */
  readonly secrets: SecretMembers | null;
};

/** What a slug of `@slug/model` stands for: a virtual key, or a provider with the credential of its integration. */
export type LiveCredential = OpenCredential & {
  readonly id: string;
  readonly workspaceId: string;
  readonly slug: string;
  /** How messages call it. */
  readonly noun: 'virtual key' | 'provider';
  readonly expiresAtMs: number;
  /** Slug of the integration that holds the credential. Absent: the record itself does. */
  readonly integration?: string;
  /** Absent: all. */
  readonly models?: AllowedModels;
  /** Why it cannot be used at present. Absent: it can. */
  readonly blocked?: 'integration_deleted' | 'integration_not_shared';
};

/** Members of a request that make a credential: `key`, `custom_host`, the provider's settings under our names and Portkey's. */
type CredentialInput = Readonly<Record<string, unknown>> & {
  provider?: string | undefined;
  custom_host?: string | null | undefined;
};

type Context = Pick<CheckContext<unknown>, 'checkDestination' | 'readSecrets' | 'row'>;
type Judged<Data> = { data: Data; secrets: SecretMembers };

/** Judges a new credential. Throws invalid_request for an unknown provider, setting or host, and a missing credential. */
export function checkNewCredential(
  input: CredentialInput,
  { checkDestination }: Pick<Context, 'checkDestination'>,
): Judged<Omit<StoredCredential, 'secret_id'>> {
  const provider = findProvider(input.provider ?? '')?.id;
  if (provider === undefined) throw unknownProvider(input.provider ?? '', 'provider');
  const { settings, secrets } = splitSettings(provider, withOurNames(input));
  if (secrets['key'] === undefined && !authenticates({ settings, secrets })) throw missingKey();
  const customHost = checkHost(checkDestination, { provider, settings, customHost: input.custom_host ?? null });
  return { data: { provider, custom_host: customHost, settings, secret_last_four: lastFourOf(secrets) }, secrets };
}

/**
 * Judges the change of a credential. A stored credential is only sent to the server that it was stored for: a change of
 * server needs the credential in the same request, and none of the old secrets are kept. Throws invalid_request.
 */
export async function checkChangedCredential(
  input: CredentialInput,
  { checkDestination, readSecrets, row }: Context,
  stored: StoredCredential,
): Promise<{ data: Partial<StoredCredential>; secrets?: SecretMembers }> {
  const { provider } = stored;
  const { settings: givenSettings, secrets: given } = splitSettings(provider, withOurNames(input));
  const settings = { ...stored.settings, ...givenSettings };
  const wanted = input.custom_host === undefined ? stored.custom_host : input.custom_host;
  // A stored host is not checked again, so that a name can be changed whatever the operator allows by now.
  const isNewPlace = input.custom_host !== undefined || (wanted === null && Object.keys(givenSettings).length > 0);
  const place = { provider, settings, customHost: wanted };
  const customHost = isNewPlace ? checkHost(checkDestination, place) : wanted;
  const moved =
    customHost === stored.custom_host ? changedDestination(provider, stored.settings, givenSettings) : 'custom_host';
  const hasNewSecret = Object.keys(given).length > 0;
  if (moved !== null && stored.secret_id !== null && !hasNewSecret) throw needsCredential(row?.slug ?? '', moved);
  const data = { custom_host: customHost, settings };
  if (!hasNewSecret) return { data };
  const kept = moved === null ? await readSecrets() : null;
  const secrets = { ...kept, ...given };
  return { data: { ...data, secret_last_four: lastFourOf(secrets) }, secrets };
}

/** The credential of a row, ready for calls. `secrets` is null when they cannot be decrypted. */
export const liveCredential = (data: StoredCredential, secrets: SecretMembers | null): OpenCredential => ({
  provider: data.provider,
  customHost: data.custom_host,
  baseUrl: data.custom_host === null ? addressOf(data) : new URL(data.custom_host),
  settings: data.settings,
  apiKey: secrets?.['key'] ?? null,
  secrets,
});

/** Settings that came under Portkey's names, under ours. Throws invalid_request for several deployments without a default. */
function withOurNames({ deploymentConfig, deployment_config: sent, ...input }: CredentialInput): CredentialInput {
  const deployments = (deploymentConfig ?? sent ?? []) as readonly { is_default?: boolean }[];
  const chosen = deployments.length === 1 ? deployments[0] : deployments.find((deployment) => deployment.is_default);
  if (deployments.length > 0 && chosen === undefined) {
    const message =
      "Invalid 'deploymentConfig': a virtual key calls one deployment. Mark it with is_default, and store a virtual key for each of the others.";
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'deploymentConfig' });
  }
  const given: Readonly<Record<string, unknown>> = { ...chosen, ...input };
  const renamed = portkeySettings
    .filter(([name]) => given[name] != null)
    .map(([name, setting]) => [setting, given[name]]);
  return { ...Object.fromEntries(renamed), ...input };
}

/** null for a provider that this process does not know, or settings that it cannot make an address of. */
function addressOf({ provider, settings }: StoredCredential): URL | null {
  try {
    return findProvider(provider)?.baseUrlOf(settings) ?? null;
  } catch {
    return null;
  }
}

const missingKey = (): GatewayError =>
  new GatewayError('invalid_request', 'missing_required_parameter', "Missing required parameter: 'key'.", {
    param: 'key',
  });

const needsCredential = (slug: string, param: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'credential_required',
    `Changing '${param}' would send the stored credential of '${slug}' to another server. Send the 'key' (or the ` +
      "provider's own secret settings) in the same request.",
    { param: 'key' },
  );
