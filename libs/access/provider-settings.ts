import type { IncomingHttpHeaders } from 'node:http';
import { secretNames, settingNames } from '#libs/contracts/virtual-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/secret.ts';
import type { SettingForm } from '#libs/providers/provider.ts';
import { settingFields } from '#libs/providers/setting-fields.ts';

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
 * The provider's own settings in a caller's headers (`x-gateway-` and the setting's name with hyphens). They belong to the
 * caller's own credential and are read for nothing else. Throws invalid_request, without quoting a secret.
 */
export function settingsOf(headers: IncomingHttpHeaders): ProviderSettings {
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
export const isDocument = (setting: string): boolean => forms[setting]?.json === true;

/**
 * Refuses a credential (`key`, or a secret setting) that no header can hold: one that was pasted with a line break would be
 * stored, and then fail every call. Throws invalid_request naming `param`, without quoting the credential.
 */
export function assertSendable(setting: string, value: string, param: string): void {
  if (isDocument(setting) || /^[\x21-\x7e]+$/.test(value)) return;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    `Invalid '${param}': a credential must consist of printable ASCII characters, without spaces and line breaks.`,
    { param },
  );
}

/** Whether a provider may know its caller by these settings, without a `key`. */
export const authenticates = ({ settings, secrets }: ProviderSettings): boolean =>
  Object.keys(secrets).length > 0 || Object.keys(settings).some((name) => forms[name]?.authenticates);
