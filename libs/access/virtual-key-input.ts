import {
  virtualKeySecretNames,
  virtualKeySettingNames,
  type CreateVirtualKeyRequest,
  type UpdateVirtualKeyRequest,
} from '#libs/contracts/virtual-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/secret.ts';
import { findForeignSetting } from '#libs/providers/foreign-setting.ts';
import { assertSendable } from './assert-sendable.ts';
import type { SecretMembers } from './secrets.ts';

/** Everything that is encrypted; the order is that of preference for the last four characters. */
const secretNames = ['key', ...virtualKeySecretNames] as const;

/**
 * Settings that choose the server which a credential is sent to. To change one asks for the credential again, as a custom
 * host does: otherwise whoever may edit a virtual key could have its key sent to a server of his own (CVE-2026-41487).
 */
const destinationSettings: ReadonlySet<string> = new Set([
  'azure_resource_name',
  'azure_endpoint_name',
  'azure_foundry_url',
  'huggingface_base_url',
  'snowflake_account',
]);

/**
 * A request's flat members, told apart: what may be shown again, and what is encrypted.
 * Throws invalid_request for a credential that no header can carry, and for a setting of another provider than `provider`,
 * which nobody would ever read. (Those of headers are not judged: a client may send the same ones with every call.)
 */
export function splitSettings(
  provider: string,
  request: CreateVirtualKeyRequest | UpdateVirtualKeyRequest,
): { settings: Record<string, string>; secrets: SecretMembers } {
  const settings: Record<string, string> = {};
  for (const name of virtualKeySettingNames) {
    const value = request[name];
    if (value !== undefined) settings[name] = value;
  }
  const secrets: Record<string, Secret> = {};
  for (const name of secretNames) {
    const value = request[name];
    if (value === undefined) continue;
    if (name !== 'vertex_service_account_json') assertSendable(value, name);
    secrets[name] = new Secret(value);
  }
  refuseForeignSetting(provider, [...Object.keys(settings), ...Object.keys(secrets)]);
  return { settings, secrets };
}

function refuseForeignSetting(provider: string, names: readonly string[]): void {
  const foreign = findForeignSetting(provider, names);
  if (foreign === null) return;
  const owners = foreign.providers.join(', ');
  const message = `Invalid '${foreign.name}': it is a setting of ${owners}, and this key is one of ${provider}. Leave it out.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: foreign.name });
}

/** The name of a setting that would send the stored credential elsewhere, or null. */
export function changedDestination(
  stored: Readonly<Record<string, string>>,
  wanted: Readonly<Record<string, string>>,
): string | null {
  for (const [name, value] of Object.entries(wanted)) {
    if (destinationSettings.has(name) && stored[name] !== value) return name;
  }
  return null;
}

/** The end of the key, for people to tell keys apart. A key file (JSON) has no end that would tell anything. */
export function lastFourOf(secrets: SecretMembers): string {
  const name = secretNames.find((secret) => secrets[secret] && secret !== 'vertex_service_account_json');
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
