import type { AllowedModels } from '#libs/calls/call.ts';
import type { SecretMapping } from '#libs/contracts/secret-references.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { findProvider } from '#libs/providers/registry.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import type { Deployment } from './deployments.ts';

/** A provider's credential as its record contains it. The credential itself is a row of `secret`, never in an event. */
export type StoredCredential = {
  provider: string;
  /** Canonical (custom-host.ts); null for the provider's own address. */
  custom_host: string | null;
  /** The provider's settings that are not secret. */
  settings: Record<string, string>;
  /** null for a server that requires no credential. */
  secret_id: string | null;
  secret_last_four: string;
  /** Fields whose values are fetched for calls. Absent for none. */
  secret_mappings?: SecretMapping[];
  /** `settings` are those of the default deployment. Absent if there are no deployments. */
  deployments?: readonly Deployment[];
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
  /** Decrypted; null when the stored row cannot be decrypted. */
  readonly secrets: SecretMembers | null;
  /** A call's model selects one of them. Absent: `settings` apply to every call. */
  readonly deployments?: readonly Deployment[];
  /** The fields that are filled from secret references, and the owner of the mapping. Absent: none. */
  readonly mapped?: { readonly ownerId: string; readonly mappings: readonly SecretMapping[] };
};

/**
 * The record that the slug of `@slug/model` refers to: a virtual key, or a provider with the credential of its
 * integration.
 */
export type LiveCredential = OpenCredential & {
  readonly id: string;
  readonly workspaceId: string;
  readonly slug: string;
  /** Its name in messages. */
  readonly noun: 'virtual key' | 'provider';
  readonly expiresAtMs: number;
  /** The slug of the integration that has the credential. Absent: the record itself has it. */
  readonly integration?: string;
  /** The same as `Target.sharedAccount`. */
  readonly sharedAccount?: string;
  /** Absent: all. */
  readonly models?: AllowedModels;
  /** Why it cannot be used at present. Absent: it can be used. */
  readonly blocked?: 'integration_deleted' | 'integration_unreadable' | 'integration_not_shared';
};

/** The credential of a row, ready for calls. `secrets` is null when they cannot be decrypted; `ownerId` owns the row. */
export const liveCredential = (
  data: StoredCredential,
  secrets: SecretMembers | null,
  ownerId: string,
): OpenCredential => ({
  provider: data.provider,
  customHost: data.custom_host,
  baseUrl: data.custom_host === null ? getRegionAddress(data) : new URL(data.custom_host),
  settings: data.settings,
  apiKey: secrets?.['key'] ?? null,
  secrets,
  ...(data.deployments?.length ? { deployments: data.deployments } : {}),
  ...(data.secret_mappings?.length ? { mapped: { ownerId, mappings: data.secret_mappings } } : {}),
});

/** null for a provider that this process does not know, or settings that do not result in an address. */
function getRegionAddress({ provider, settings }: StoredCredential): URL | null {
  try {
    return findProvider(provider)?.baseUrlOf(settings) ?? null;
  } catch {
    return null;
  }
}
