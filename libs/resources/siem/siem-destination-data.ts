import { X509Certificate } from 'node:crypto';
import type { z } from 'zod';
import type { siemDestinationFields } from '#libs/contracts/siem-destinations.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { Checked } from '#libs/records/kit.ts';
import { asJson, type Authors } from '#libs/records/resource-row.ts';
import type { CheckContext } from '#libs/resources/define-kind.ts';

type SiemInput = z.output<z.ZodObject<typeof siemDestinationFields>>;

export type SiemDestinationData = Authors & Omit<SiemInput, 'token'> & { secret_id?: string | null };

/** Where a destination's events go. Its scheme is https, also for syslog. Throws invalid_request for another URL. */
export function toServerUrl({ type, url = '' }: Pick<SiemDestinationData, 'type' | 'url'>): URL {
  const scheme = type === 'syslog' ? 'tls://' : 'https://';
  const example = type === 'syslog' ? 'tls://siem.example.com:6514' : 'https://siem.example.com/events';
  // The host of an unknown scheme would not be normalised, and the egress rules compare normalised ones.
  const server = url.startsWith(scheme) ? URL.parse(`https://${url.slice(scheme.length)}`) : null;
  if (server === null) throw invalid('url', `expected an address such as ${example}`);
  if (type === 'syslog' && !/:\d+\/?$/.test(url)) server.port = syslogPort;
  if (type === 'splunk_hec' && server.pathname === '/') server.pathname = '/services/collector/event';
  return server;
}

/** The port of syslog over TLS (RFC 5425 4.1). */
const syslogPort = '6514';

/** Checks a new or changed destination, and returns what to store. Throws invalid_request and forbidden. */
export function checkDestination(
  { token, ...fields }: Partial<SiemInput>,
  { row, workspaceId, checkDestination: checkAddress, siemFolder }: CheckContext<SiemDestinationData>,
): Checked<SiemDestinationData> {
  const data = asJson(fields) as Partial<SiemDestinationData>;
  const whole = { ...row?.data, ...data } as SiemDestinationData;
  const isMoved = row === null || data.url !== undefined;
  if (isMoved && whole.type === 'folder') checkFolder(whole, { workspaceId, isConfigured: siemFolder === true });
  else if (isMoved) checkAddress(toServerUrl(whole));
  if (data.ca) checkCertificate(data.ca);
  const takesToken = whole.type === 'https' || whole.type === 'splunk_hec';
  if (token !== undefined && !takesToken) throw invalid('token', 'only HTTPS and Splunk take one. Leave it out');
  if (token !== undefined) return { data, secrets: { token: new Secret(token) } };
  if (row?.data.secret_id && toServerUrl(whole).origin !== toServerUrl(row.data).origin) {
    throw invalid('token', 'the stored token is only sent to the server that it was stored for. Send it again');
  }
  return { data };
}

function checkFolder(
  { url }: SiemDestinationData,
  { workspaceId, isConfigured }: { workspaceId: string; isConfigured: boolean },
): void {
  if (workspaceId !== organisationId) {
    const message =
      'Only the organisation can have events written to a folder. Create the destination with an organisation key, without workspace_id.';
    throw new GatewayError('forbidden', 'organisation_key_required', message, { param: 'type' });
  }
  if (url !== undefined) throw invalid('url', 'the operator chooses the folder. Leave it out');
  if (!isConfigured) {
    throw invalid('type', 'this server has no folder for events. Ask its operator to set SLUICE_SIEM_FOLDER');
  }
}

function checkCertificate(pem: string): void {
  try {
    void new X509Certificate(pem);
  } catch {
    throw invalid('ca', 'expected a certificate in PEM, which begins with -----BEGIN CERTIFICATE-----');
  }
}

const invalid = (param: string, why: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${why}.`, { param });
