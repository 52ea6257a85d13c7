import type { IncomingHttpHeaders } from 'node:http';
import { virtualKeySecretNames, virtualKeySettingNames } from '#libs/contracts/virtual-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/secret.ts';
import { assertSendable } from './assert-sendable.ts';

export type ProviderSettings = {
  settings: Readonly<Record<string, string>>;
  secrets: Readonly<Record<string, Secret>>;
};

const lengthMax = 16_384;

type HeaderNames = readonly (readonly [setting: string, header: string, alias: string])[];
const headersOf = (settings: readonly string[]): HeaderNames =>
  settings.map((setting) => {
    const header = setting.replaceAll('_', '-');
    return [setting, `x-gateway-${header}`, `x-portkey-${header}`];
  });
const openHeaders = headersOf(virtualKeySettingNames);
const secretHeaders = headersOf(virtualKeySecretNames);

/**
 * The provider's own settings in a caller's headers (`x-gateway-aws-region`, `x-gateway-aws-secret-access-key`; the names
 * of libs/contracts/virtual-keys.ts). They belong to the caller's own credential and are read for nothing else.
 * Throws invalid_request, without quoting a secret.
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
    if (setting !== 'vertex_service_account_json') assertSendable(value, header);
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

/** Settings by which a provider knows its caller without a `key`. */
export function authenticates({ settings, secrets }: ProviderSettings): boolean {
  return Object.keys(secrets).length > 0 || 'aws_role_arn' in settings || 'azure_auth_mode' in settings;
}
