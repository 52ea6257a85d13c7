import type { RenewedCredential, Target } from '#libs/calls/call.ts';
import type { SecretMapping } from '#libs/contracts/secret-references.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import { mayTakeMember, memberNotAllowed } from '#libs/resources/secret-references/secret-reference-data.ts';
import { secretReferenceKind } from '#libs/resources/secret-references/secret-references.ts';
import { refuseUnreadable } from '#libs/records/find-by-name.ts';
import type { LiveCredential } from '#libs/resources/stored-credential.ts';
import type { FetchedSecret } from '#libs/secret-managers/fetched-secret.ts';
import type { SecretCache } from '#libs/secret-managers/secret-cache.ts';
import { SecretError } from '#libs/secret-managers/secret-error.ts';
import type { LiveSecretReference } from '#libs/secret-managers/secret-manager.ts';
import { assertSendable, isSecretSetting, refuseUnmappable } from '#libs/credentials/provider-settings.ts';
import type { AccessSnapshot } from './access-snapshot.ts';

export type MappedSecrets = {
  /**
   * Adds to a target what its credential takes from secret references. At once when all of them are cached. Throws
   * SecretError, and GatewayError `secret_reference_not_allowed`.
   */
  complete: (target: Target, key: LiveCredential) => Target | Promise<Target>;
};

type Mapped = { mapping: SecretMapping; reference: LiveSecretReference };

/** Finds the values of fields that are mapped to secret references. */
export function createMappedSecrets({
  snapshot,
  cache,
}: {
  snapshot: Pick<AccessSnapshot, 'live'>;
  cache: Pick<SecretCache, 'read' | 'renew'>;
}): MappedSecrets {
  // Everything is checked again: the reference, or the rules of mappings, may be newer than the mapping.
  const referenceOf = (
    mapping: SecretMapping,
    { provider, ownerId }: { provider: string; ownerId: string },
  ): Mapped => {
    const { target_field: field, secret_reference_id: id } = mapping;
    refuseUnmappable(provider, field, `secret_mappings.${field}`);
    const reference = snapshot.live(secretReferenceKind).byId.get(id);
    if (reference === undefined) refuseUnreadable(snapshot.live(secretReferenceKind), null, id);
    if (reference === undefined) throw deleted(mapping);
    if (!mayMap(reference, ownerId)) throw notAllowed(reference);
    const secretKey = mapping.secret_key ?? reference.key;
    if (!mayTakeMember(reference, ownerId, secretKey)) throw memberNotAllowed(reference, secretKey, null);
    return { mapping, reference };
  };

  const complete: MappedSecrets['complete'] = (target, { mapped }) => {
    if (mapped === undefined) return target;
    const { ownerId } = mapped;
    const { provider } = target;
    const found = mapped.mappings.map((mapping) => referenceOf(mapping, { provider, ownerId }));
    // A refusal of one is a promise too: thrown at once, it would leave those of the others without anybody who waits.
    const read = found.map(({ reference }) => {
      try {
        return cache.read(reference);
      } catch (error) {
        return Promise.reject<FetchedSecret>(error);
      }
    });
    const isReady = read.every((secret) => !(secret instanceof Promise));
    const use = (secrets: readonly FetchedSecret[]): Target => {
      const filled = fill(target, found, secrets);
      return { ...target, ...filled, renewCredential: () => renew(target, found, secrets, filled) };
    };
    if (isReady) return use(read as FetchedSecret[]);
    return Promise.all(read.map((secret) => Promise.resolve(secret))).then(use);
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

/** The workspace that owns a reference may map it, and of the organisation's those that it is for. */
function mayMap({ ownerId, workspaces }: LiveSecretReference, mapperId: string): boolean {
  if (ownerId === mapperId) return true;
  return ownerId === organisationId && (workspaces === null || workspaces.has(mapperId));
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
    // Whatever comes from a reference counts as a secret, so that it is removed from answers and errors.
    secrets[field] = value;
    if (!isSecretSetting(field)) settings[field] = value.reveal();
  }
  return { apiKey, settings, secrets };
}

function refuseUnsendable(slug: string, field: string, value: Secret): void {
  if (!isSecretSetting(field) && !/^\w+$/.test(value.reveal())) {
    throw new SecretError('malformed', slug, `holds a value for '${field}' with more than letters, digits and '_'`);
  }
  try {
    assertSendable(field, value.reveal(), field);
  } catch (error) {
    const what =
      `holds a value for '${field}' that is no credential: it must consist of printable ASCII characters, without ` +
      'spaces and line breaks';
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
    `The secret reference '${id}', which '${field}' of this credential is mapped to, does not exist any more.`,
  );

const notAllowed = ({ slug }: LiveSecretReference): GatewayError =>
  new GatewayError(
    'forbidden',
    'secret_reference_not_allowed',
    `The secret reference '${slug}' is not for this workspace any more. A key of the organisation can allow it again.`,
  );
