import {
  secretNames as secretSettingNames,
  settingNames,
  type CreateVirtualKeyRequest,
  type UpdateVirtualKeyRequest,
} from '#libs/contracts/virtual-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/secret.ts';
import type { Settings } from '#libs/providers/provider.ts';
import { findProvider, providersWith } from '#libs/providers/registry.ts';
import { canonicalHost, parseCustomHost } from './custom-host.ts';
import { assertSendable, isDocument } from './provider-settings.ts';
import type { SecretMembers } from './secrets.ts';

/** Everything that is encrypted; the order is that of preference for the last four characters. */
const secretNames = ['key', ...secretSettingNames] as const;

/**
 * Divides a request's flat members into what may be shown again and what is encrypted.
 * Throws invalid_request for a credential that no header can hold, and for a setting that `provider` does not know.
 * (Settings in headers are not checked like this: a client may send the same ones with every call.)
 */
export function splitSettings(
  provider: string,
  request: CreateVirtualKeyRequest | UpdateVirtualKeyRequest,
): { settings: Record<string, string>; secrets: SecretMembers } {
  const settings: Record<string, string> = {};
  for (const name of settingNames) {
    const value = request[name];
    if (value !== undefined) settings[name] = value;
  }
  const secrets: Record<string, Secret> = {};
  for (const name of secretNames) {
    const value = request[name];
    if (value === undefined) continue;
    assertSendable(name, value, name);
    secrets[name] = new Secret(value);
  }
  refuseForeignSetting(provider, [...Object.keys(settings), ...Object.keys(secrets)]);
  return { settings, secrets };
}

function refuseForeignSetting(provider: string, names: readonly string[]): void {
  const known = findProvider(provider)?.settings ?? {};
  const foreign = names.find((name) => name !== 'key' && !Object.hasOwn(known, name));
  if (foreign === undefined) return;
  const owners = providersWith(foreign).join(', ');
  const message = `Invalid '${foreign}': it is a setting of ${owners}, and this key is one of ${provider}. Leave it out.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: foreign });
}

/**
 * Checks where a virtual key's calls go: the canonical form of `customHost`, or null for the address that the provider has
 * with these settings. Throws invalid_request when there is none, and for a host that can never be called.
 */
export function checkHost(
  checkDestination: (url: URL) => void,
  { provider, settings, customHost }: { provider: string; settings: Settings; customHost: string | null },
): string | null {
  if (customHost === null) {
    if (findProvider(provider)?.baseUrlOf(settings)) return null;
    throw missingHost(provider, settings);
  }
  const url = parseCustomHost(customHost, 'custom_host');
  checkDestination(url);
  return canonicalHost(url);
}

/** The refusal of a target whose provider has no address: none of its own, or one made of a setting that is not given. */
function missingHost(provider: string, settings: Settings): GatewayError {
  const address = findProvider(provider)?.address ?? '';
  const names = [...address.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name);
  const setting = names.find((name) => !settings[name]);
  return new GatewayError(
    'invalid_request',
    'missing_required_parameter',
    setting === undefined
      ? `Missing required parameter: 'custom_host'. The provider '${provider}' has no default address.`
      : `Missing required parameter: '${setting}'. The address of the provider '${provider}' is made of it; ` +
          `or give a server of your own as 'custom_host'.`,
    { param: setting ?? 'custom_host' },
  );
}

/** The name of a setting that would send the stored credential to another server, or null. */
export function changedDestination(
  provider: string,
  stored: Readonly<Record<string, string>>,
  wanted: Readonly<Record<string, string>>,
): string | null {
  const known = findProvider(provider)?.settings ?? {};
  const changed = Object.keys(wanted).find((name) => known[name]?.destination && stored[name] !== wanted[name]);
  return changed ?? null;
}

/** The end of the key, for people to tell keys apart. A key file (JSON) has no end that would tell anything. */
export function lastFourOf(secrets: SecretMembers): string {
  const name = secretNames.find((secret) => secrets[secret] && !isDocument(secret));
  return (name && secrets[name]?.lastFour()) ?? '';
}

/** Slugs to try for a key without one, best first; the last is random, so that one of them is free. */
export function slugCandidates(name: string, random: string): string[] {
  const base =
    name
      .normalize('NFKD')
      .toLowerCase()
      .replaceAll(/[^a-z0-9_-]+/g, '-')
      .replaceAll(/^-+|-+$/g, '')
      .slice(0, 50) || 'key';
  const numbered = Array.from({ length: 20 }, (_, index) => `${base}-${index + 2}`);
  return [base, ...numbered, `${base}-${random}`];
}
