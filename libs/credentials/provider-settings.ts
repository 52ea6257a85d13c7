import type { IncomingHttpHeaders } from 'node:http';
import { secretNames, settingNames } from '#libs/contracts/virtual-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { SettingForm } from '#libs/providers/provider.ts';
import { findProvider, providersWith } from '#libs/providers/registry.ts';
import { settingFields } from '#libs/providers/setting-fields.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';

export type ProviderSettings = {
  settings: Readonly<Record<string, string>>;
  secrets: Readonly<Record<string, Secret>>;
};

const lengthMax = 16_384;
const forms: Readonly<Record<string, SettingForm>> = settingFields;

type HeaderNames = readonly (readonly [setting: string, header: string, alias: string])[];
const headersOf = (settings: readonly string[]): HeaderNames =>
  settings.map((setting) => {
    const header = setting.replaceAll('_', '-');
    return [setting, `x-gateway-${header}`, `x-portkey-${header}`];
  });
const openHeaders = headersOf(settingNames);
const secretHeaders = headersOf(secretNames);

/**
 * The provider's own settings in a caller's headers (`x-gateway-` and the setting's name with hyphens). They belong to
 * the caller's own credential and are not used for any other. Throws invalid_request, without quoting a secret.
 */
export function readSettings(headers: IncomingHttpHeaders): ProviderSettings {
  const settings: Record<string, string> = {};
  for (const [setting, header, alias] of openHeaders) {
    const value = valueOf(headers, header, alias);
    if (value !== null) settings[setting] = value;
  }
  const secrets: Record<string, Secret> = {};
  for (const [setting, header, alias] of secretHeaders) {
    const value = valueOf(headers, header, alias);
    if (value === null) continue;
    assertSendable(setting, value, header);
    secrets[setting] = new Secret(value);
  }
  return { settings, secrets };
}

function valueOf(headers: IncomingHttpHeaders, header: string, alias: string): string | null {
  const value = headers[header] || headers[alias];
  if (typeof value !== 'string' || value === '') return null;
  if (value.length <= lengthMax) return value;
  const message = `Invalid ${header}: it is longer than ${lengthMax} characters.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: header });
}

/** Whether the setting is a document (a key file), which is not sent in a header. */
const isDocument = (setting: string): boolean => forms[setting]?.json === true;

/** Whether a field is stored encrypted, like `key`. */
export const isSecretSetting = (name: string): boolean => name === 'key' || forms[name]?.secret === true;

/**
 * The fields of a provider's credential that a secret reference can fill: its secrets, and the settings that belong to
 * them. The provider might repeat any other setting, and a caller could then read a secret that was only shared for
 * calls.
 */
function mappableFields(provider: string): string[] {
  const { settings = {}, address = '' } = findProvider(provider) ?? {};
  const names = Object.entries(settings).flatMap(([name, { secret, mappable, unused, destination }]) => {
    const isCredential = secret === true || mappable === true;
    const choosesServer = destination === true || (address ?? '').includes(`{${name}}`);
    return isCredential && unused !== true && !choosesServer ? [name] : [];
  });
  return ['key', ...names];
}

/** Throws invalid_request for a field that a secret reference cannot fill. `param` names the field in the request. */
export function refuseUnmappable(provider: string, field: string, param: string): void {
  const names = mappableFields(provider);
  if (names.includes(field)) return;
  const message = `Invalid '${param}': '${field.slice(0, 100)}' cannot be mapped. Only credentials can be mapped. For ${provider}, these are: ${names.join(', ')}.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param });
}

/**
 * Refuses a credential (`key`, or a secret setting) that no header can contain: one that was pasted with a line break
 * would be stored, and then fail every call. Throws invalid_request naming `param`, without quoting the credential.
 */
export function assertSendable(setting: string, value: string, param: string): void {
  if (isDocument(setting) || /^[\x21-\x7e]+$/.test(value)) return;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    `Invalid '${param}': a credential can only contain printable ASCII characters, without spaces or line breaks.`,
    { param },
  );
}

/** Whether these settings can authenticate a caller at the provider, without a `key`. */
export const authenticates = ({ settings, secrets }: ProviderSettings): boolean =>
  Object.keys(secrets).length > 0 || Object.keys(settings).some((name) => forms[name]?.authenticates);

/** Whether a field alone can authenticate a caller at the provider. */
export const proves = (name: string): boolean =>
  name === 'key' || forms[name]?.secret === true || forms[name]?.authenticates === true;

/** All encrypted fields, in the order of preference for the last four characters. */
const credentialNames = ['key', ...secretNames] as const;

/**
 * Splits a request's flat members into those that can be shown again and those that are encrypted. Throws invalid_request
 * for a credential that no header can contain, and for a setting that `provider` does not know. (Settings in headers are not
 * checked like this: a client can send the same ones with every call.)
 */
export function splitSettings(
  provider: string,
  request: Readonly<Record<string, unknown>>,
): { settings: Record<string, string>; secrets: SecretMembers } {
  const settings: Record<string, string> = {};
  for (const name of settingNames) {
    const value = request[name];
    if (typeof value === 'string') settings[name] = value;
  }
  const secrets: Record<string, Secret> = {};
  for (const name of credentialNames) {
    const value = request[name];
    if (typeof value !== 'string') continue;
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
  const message = `Invalid '${foreign}': it is a setting of ${owners}, but this key is for ${provider}. Leave it out.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: foreign });
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

/** The end of the key, so that people can distinguish keys. The end of a key file (JSON) would not help. */
export function getLastFour(secrets: SecretMembers): string {
  const name = credentialNames.find((secret) => secrets[secret] && !isDocument(secret));
  return (name && secrets[name]?.lastFour()) ?? '';
}
