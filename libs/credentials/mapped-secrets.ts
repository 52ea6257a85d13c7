import type { RenewedCredential, Target } from '#libs/calls/call.ts';
import type { SecretMapping } from '#libs/contracts/secret-references.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { FetchedSecret } from '#libs/secret-managers/fetched-secret.ts';
import type { SecretCache } from '#libs/secret-managers/secret-cache.ts';
import { SecretError } from '#libs/secret-managers/secret-error.ts';
import type { LiveSecretReference } from '#libs/secret-managers/secret-manager.ts';
import { assertSendable, isSecretSetting, refuseUnmappable } from './provider-settings.ts';
import type { LiveCredential } from './stored.ts';

export type MappedSecrets = {
  /**
   * Adds the values to a target that its credential takes from secret references. They are cached, so this rarely
   * waits. Throws SecretError, and GatewayError `secret_reference_not_allowed`.
   */
  complete: (target: Target, mapped: NonNullable<LiveCredential['mapped']>) => Promise<Target>;
};

type Mapped = { mapping: SecretMapping; reference: LiveSecretReference };

/** Finds the values of fields that are mapped to secret references. */
export function createMappedSecrets({
  snapshot,
  cache,
}: {
  snapshot: { findSecretReference(id: string): LiveSecretReference | undefined };
  cache: Pick<SecretCache, 'read' | 'renew'>;
}): MappedSecrets {
  // Everything is checked again, because the reference, or the rules of mappings, can be newer than the mapping.
  const referenceOf = (mapping: SecretMapping, provider: string, ownerId: string): Mapped => {
    const { target_field: field, secret_reference_id: id } = mapping;
    refuseUnmappable(provider, field, `secret_mappings.${field}`);
    const reference = snapshot.findSecretReference(id);
    if (reference === undefined) throw deleted(mapping);
    if (!mayMap(reference, ownerId)) throw notAllowed(reference);
    const secretKey = mapping.secret_key ?? reference.key;
    if (!canUseMember(reference, ownerId, secretKey)) throw memberNotAllowed(reference, secretKey, null);
    return { mapping, reference };
  };

  const complete: MappedSecrets['complete'] = async (target, { mappings, ownerId }) => {
    const found = mappings.map((mapping) => referenceOf(mapping, target.provider, ownerId));
    const secrets = await Promise.all(found.map(async ({ reference }) => cache.read(reference)));
    const filled = fill(target, found, secrets);
    return { ...target, ...filled, renewCredential: () => renew(target, found, secrets, filled) };
  };

  const renew = async (
    target: Target,
    found: readonly Mapped[],
    used: readonly FetchedSecret[],
    before: RenewedCredential,
  ): Promise<RenewedCredential | null> => {
    const renewed = await Promise.all(
      found.map(async ({ reference }, index) => {
        const secret = used[index] as FetchedSecret;
        return (await cache.renew(reference, secret)) ?? secret;
      }),
    );
    try {
      const filled = fill(target, found, renewed);
      return isSame(before, filled) ? null : filled;
    } catch (error) {
      if (error instanceof SecretError) return null;
      throw error;
    }
  };

  return { complete };
}

/**
 * A reference can be mapped by the workspace that owns it. One of the organisation can be mapped by the workspaces that
 * it is shared with.
 */
function mayMap({ ownerId, workspaces }: LiveSecretReference, mapperId: string): boolean {
  if (ownerId === mapperId) return true;
  return ownerId === organisationId && (workspaces === null || workspaces.has(mapperId));
}

/**
 * Whether a credential of `mapperId` can take the member `secretKey` of a secret (null: the whole secret). The organisation
 * decides which members of its secrets workspaces can use. The owner of a reference can use all members.
 */
export function canUseMember(
  { ownerId, key, allowedKeys }: { ownerId: string; key: string | null; allowedKeys: readonly string[] },
  mapperId: string,
  secretKey: string | null,
): boolean {
  if (ownerId === mapperId) return true;
  // Without secret_key the whole secret is shared, unless single members are.
  const isShared = secretKey === key && (key !== null || allowedKeys.length === 0);
  return isShared || (secretKey !== null && allowedKeys.includes(secretKey));
}

/** Explains what a mapping can name instead of a member that the workspace cannot use. */
export function memberNotAllowed(
  { slug, key, allowedKeys }: { slug: string; key: string | null; allowedKeys: readonly string[] },
  secretKey: string | null,
  param: string | null,
): GatewayError {
  const names = [...new Set([...(key === null ? [] : [key]), ...allowedKeys])];
  const allowed =
    names.length === 0 ? 'Leave secret_key out' : `Allowed: ${names.map((name) => `'${name}'`).join(', ')}`;
  const wanted = secretKey === null ? 'The whole secret' : `The member '${secretKey.slice(0, 100)}'`;
  const message = `${wanted} of the secret reference '${slug}' is not shared with this workspace. ${allowed}, or ask an admin of the organisation to extend allowed_secret_keys of the reference.`;
  return new GatewayError('forbidden', 'secret_key_not_allowed', message, { param });
}

function fill(target: Target, found: readonly Mapped[], fetched: readonly FetchedSecret[]): RenewedCredential {
  let { apiKey } = target;
  const settings: Record<string, string> = { ...target.settings };
  const secrets: Record<string, Secret> = { ...target.secrets };
  for (const [index, { mapping, reference }] of found.entries()) {
    const { target_field: field, value_format: format } = mapping;
    const key = mapping.secret_key ?? reference.key;
    const value = (fetched[index] as FetchedSecret).pick(key, format ?? 'string');
    refuseUnsendable(reference.slug, field, value);
    if (field === 'key') apiKey = value;
    // Every value from a reference is treated as a secret, so that it is removed from answers and errors.
    secrets[field] = value;
    if (!isSecretSetting(field)) settings[field] = value.reveal();
  }
  return { apiKey, settings, secrets };
}

function refuseUnsendable(slug: string, field: string, value: Secret): void {
  if (!isSecretSetting(field) && !/^\w+$/.test(value.reveal())) {
    throw new SecretError(
      'malformed',
      slug,
      `holds a value for '${field}' that is not valid. It can only contain letters, digits and '_'`,
    );
  }
  try {
    assertSendable(field, value.reveal(), field);
  } catch (error) {
    const what = `holds a value for '${field}' that is not a valid credential. It can only contain printable ASCII characters, without spaces or line breaks`;
    throw new SecretError('malformed', slug, what, error);
  }
}

const textsOf = ({ apiKey, settings, secrets }: RenewedCredential): string =>
  JSON.stringify([
    apiKey?.reveal(),
    settings,
    Object.entries(secrets).map(([name, secret]) => [name, secret.reveal()]),
  ]);

const isSame = (one: RenewedCredential, other: RenewedCredential): boolean => textsOf(one) === textsOf(other);

const deleted = ({ target_field: field, secret_reference_id: id }: SecretMapping): GatewayError =>
  new GatewayError(
    'dependency_failed',
    'secret_reference_not_found',
    `The secret reference '${id}', which '${field}' of this credential is mapped to, no longer exists.`,
  );

const notAllowed = ({ slug }: LiveSecretReference): GatewayError =>
  new GatewayError(
    'forbidden',
    'secret_reference_not_allowed',
    `The secret reference '${slug}' is no longer shared with this workspace. An organisation key can share it again.`,
  );
