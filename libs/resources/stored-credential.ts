import type { z } from 'zod';
import type { SecretMapping, secretMappings } from '#libs/contracts/secret-references.ts';
import { portkeySettings, secretNames } from '#libs/contracts/virtual-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { findProvider } from '#libs/providers/registry.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import { checkHost } from '#libs/credentials/custom-host.ts';
import {
  authenticates,
  changedDestination,
  getLastFour,
  proves,
  splitSettings,
  type ProviderSettings,
} from '#libs/credentials/provider-settings.ts';
import { unknownProvider } from '#libs/credentials/not-found.ts';
import type { StoredCredential } from '#libs/credentials/stored.ts';
import type { CheckContext } from '#libs/resources/define-kind.ts';
import {
  defaultSettings,
  readDeployments,
  refuseLooseSetting,
  shownDeployments,
  withoutDeployment,
  type Deployment,
  type GivenDeployments,
} from '#libs/credentials/deployments.ts';
import { checkMappings, refuseOtherHosts } from '#libs/resources/secret-references/secret-mappings.ts';

/** Kinds whose slugs name credentials in calls. Within a workspace, no two of these slugs are equal. */
export const credentialKinds = ['virtual_key', 'provider'] as const;

/** A pattern of the members of a record that hold a credential. */
export const credentialMember = `(?:${['key', ...secretNames].join('|')})`;

/**
 * The members of a request that define a credential: `key`, `custom_host`, and the provider's settings under our names and
 * Portkey's.
 */
type CredentialInput = Readonly<Record<string, unknown>> & {
  secret_mappings?: z.output<ReturnType<typeof secretMappings>> | undefined;
  provider?: string | undefined;
  custom_host?: string | null | undefined;
};

type Context = Pick<CheckContext<unknown>, 'checkDestination' | 'readSecrets' | 'row' | 'unit' | 'workspaceId'>;
type TimedFinding<Data> = { data: Data; secrets: SecretMembers };

/**
 * Validates a new credential; the request names its provider in `providerParam`. Throws invalid_request for an unknown
 * provider, setting or host, and for a missing credential; forbidden for a host that a mapped secret must not be sent to.
 */
export async function checkNewCredential(
  input: CredentialInput,
  { checkDestination, unit, workspaceId: ownerId }: Pick<Context, 'checkDestination' | 'unit' | 'workspaceId'>,
  providerParam: 'provider' | 'ai_provider_id',
): Promise<TimedFinding<Omit<StoredCredential, 'secret_id'>>> {
  const provider = findProvider(input.provider ?? '')?.id;
  if (provider === undefined) throw unknownProvider(input.provider ?? '', providerParam);
  const { settings: own, secrets } = splitSettings(provider, withOurNames(input));
  const deployments = readDeployments(provider, deploymentsIn(input) ?? []);
  const settings = { ...own, ...defaultSettings(deployments) };
  const mappings = (await checkMappings(unit, { ownerId, provider }, input.secret_mappings)) ?? [];
  refuseMappedValue({ ...settings, ...secrets }, mappings, deployments);
  if (!isComplete({ settings, secrets }, mappings)) throw missingKey();
  const customHost = checkHost(checkDestination, { provider, settings, customHost: input.custom_host ?? null });
  await refuseOtherHosts(unit, { ownerId, customHost }, mappings);
  const mapped = mappings.length === 0 ? {} : { secret_mappings: mappings };
  const listed = deployments.length === 0 ? {} : { deployments };
  const lastFour = getLastFour(secrets);
  return {
    data: { provider, custom_host: customHost, settings, secret_last_four: lastFour, ...mapped, ...listed },
    secrets,
  };
}

/**
 * Validates the change of a credential. A stored credential is only sent to the server for which it was stored: to change
 * the server, the request must include the credential, and none of the old secrets are kept. Throws the errors of
 * `checkNewCredential`.
 */
export async function checkChangedCredential(
  input: CredentialInput,
  { checkDestination, readSecrets, row, unit, workspaceId: ownerId }: Context,
  stored: StoredCredential,
): Promise<{ data: Partial<StoredCredential>; secrets?: SecretMembers }> {
  const { provider, secret_mappings: before = [], deployments: listed = [] } = stored;
  const { settings: loose, secrets: given } = splitSettings(provider, withOurNames(input));
  const list = deploymentsIn(input);
  if (list === undefined && listed.length > 0) refuseLooseSetting(loose);
  const deployments = list === undefined ? listed : readDeployments(provider, list);
  const givenSettings = { ...loose, ...(list === undefined ? {} : defaultSettings(deployments)) };
  const kept =
    list === undefined || list.length + listed.length === 0 ? stored.settings : withoutDeployment(stored.settings);
  const changed = await checkMappings(unit, { ownerId, provider }, input.secret_mappings);
  const mappings = changed ?? before;
  refuseMappedValue({ ...givenSettings, ...given }, mappings, deployments);
  const settings = unmapped({ ...kept, ...givenSettings }, mappings);
  const wanted = input.custom_host === undefined ? stored.custom_host : input.custom_host;
  // A stored host is not checked again, so that a name can be changed even if the operator no longer allows the host.
  const isNewPlace = input.custom_host !== undefined || (wanted === null && Object.keys(givenSettings).length > 0);
  const place = { provider, settings, customHost: wanted };
  const customHost = isNewPlace ? checkHost(checkDestination, place) : wanted;
  // If a mapped credential changes its server, the request also contains its mappings (below), so this checks every new
  // combination of the two.
  if (changed !== undefined) await refuseOtherHosts(unit, { ownerId, customHost }, changed);
  const moved =
    customHost === stored.custom_host ? changedDestination(provider, stored.settings, givenSettings) : 'custom_host';
  const hasNewSecret = Object.keys(given).length > 0;
  const movesSecret = stored.secret_id !== null && !hasNewSecret && (changed === undefined || changed.length === 0);
  const movesMapped = before.length > 0 && changed === undefined;
  if (moved !== null && (movesSecret || movesMapped)) throw needsCredential(row?.slug ?? '', moved);
  const mapped = changed === undefined ? {} : { secret_mappings: changed };
  const data = { custom_host: customHost, settings, ...mapped, ...(list === undefined ? {} : { deployments }) };
  if (!hasNewSecret && changed === undefined) return { data };
  const keptSecrets = moved === null ? unmapped((await readSecrets()) ?? {}, mappings) : null;
  const secrets: SecretMembers = { ...keptSecrets, ...given };
  if (changed !== undefined && !isComplete({ settings, secrets }, mappings)) throw missingKey();
  return { data: { ...data, secret_last_four: getLastFour(secrets) }, secrets };
}

/** Whether the provider receives credentials that identify its caller. */
const isComplete = (own: ProviderSettings, mappings: readonly SecretMapping[]): boolean =>
  own.secrets['key'] !== undefined || authenticates(own) || mappings.some(({ target_field: field }) => proves(field));

/** Throws invalid_request for a field that a request both sets and maps: one of the two would have no effect. */
function refuseMappedValue(
  given: object,
  mappings: readonly SecretMapping[],
  deployments: readonly Deployment[],
): void {
  const all = [given, ...deployments.map(({ settings }) => settings)];
  const both = mappings.find(({ target_field: field }) => all.some((each) => Object.hasOwn(each, field)));
  if (both === undefined) return;
  const { target_field: param } = both;
  const message = `Invalid '${param}': its value is taken from a secret reference. Leave it out, or send secret_mappings without it.`;
  throw new GatewayError('invalid_request', 'field_mapped', message, { param });
}

/** The stored values that remain when fields are mapped. */
function unmapped<Value>(
  values: Readonly<Record<string, Value>>,
  mappings: readonly SecretMapping[],
): Record<string, Value> {
  const fields = new Set(mappings.map(({ target_field: field }) => field));
  return Object.fromEntries(Object.entries(values).filter(([name]) => !fields.has(name)));
}

/** Renames settings that were sent under Portkey's names to ours. */
function withOurNames(given: CredentialInput): CredentialInput {
  const renamed = portkeySettings
    .filter(([name]) => given[name] != null)
    .map(([name, setting]) => [setting, given[name]]);
  return { ...Object.fromEntries(renamed), ...given };
}

/** The list of deployments in a request, in either spelling. Undefined if the request has none. */
const deploymentsIn = ({ deploymentConfig, deployment_config: sent }: CredentialInput): GivenDeployments | undefined =>
  (deploymentConfig ?? sent ?? undefined) as GivenDeployments | undefined;

/** The settings of a credential as a single member of answers, in the form of an integration's `configurations`. */
export const shownSettings = ({ settings, custom_host: host, deployments = [] }: StoredCredential): object => ({
  ...settings,
  ...(host === null ? {} : { custom_host: host }),
  ...(deployments.length === 0 ? {} : { deploymentConfig: shownDeployments(deployments) }),
});

const missingKey = (): GatewayError =>
  new GatewayError('invalid_request', 'missing_required_parameter', "Missing required parameter: 'key'.", {
    param: 'key',
  });

const needsCredential = (slug: string, param: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'credential_required',
    `Changing '${param}' would send the stored credential of '${slug}' to another server. Send the 'key' (or the ` +
      "provider's own secret settings, or 'secret_mappings') in the same request.",
    { param: 'key' },
  );
