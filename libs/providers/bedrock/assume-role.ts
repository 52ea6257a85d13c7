import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AuthorizeTools, OutboundRequest } from '../provider.ts';
import { awsDomain } from './region.ts';
import { addSignature, type Credentials } from './signature.ts';

/** `region` has been checked, because it becomes part of a host name. */
export type Role = { roleArn: string; externalId: string | undefined; region: string; credentials: Credentials };

/** `refreshing`: one call is fetching new credentials, and the others continue with these. */
type Entry = { credentials: Credentials; expiresAt: number; refreshing: boolean };

/** As many roles as are likely to be in use together. A role that was evicted is assumed again. */
const rolesMax = 1_000;
/** Every role allows an hour. */
const durationSeconds = 3_600;
/** New credentials are requested this long before the old ones expire: longer than any call waits to be sent. */
const refreshMs = 300_000;
/** With less time left than this, a call waits for new credentials. */
const leftMsMin = 30_000;

const known = new LRUCache<string, Entry>({ max: rolesMax });

/**
 * Returns the credentials of a role (AWS STS AssumeRole), cached until they expire. One call renews them while others
 * continue. Throws invalid_request when STS refuses, provider_failed when its answer cannot be read, and the errors of
 * the tools' fetch.
 */
export async function assumeRole(role: Role, tools: AuthorizeTools): Promise<Credentials> {
  const { now, keepSecret } = tools;
  const key = keyOf(role);
  const entry = known.get(key);
  const left = entry ? entry.expiresAt - now : 0;
  let credentials = entry?.credentials;
  if (!entry || !credentials || left < leftMsMin || (left < refreshMs && !entry.refreshing)) {
    if (entry) entry.refreshing = true;
    try {
      const fetched = await fetchCredentials(role, tools);
      known.set(key, { ...fetched, refreshing: false });
      ({ credentials } = fetched);
    } catch (error) {
      if (entry) entry.refreshing = false;
      if (!credentials || left < leftMsMin) throw error;
    }
  }
  keepSecret(credentials.secretAccessKey);
  if (credentials.sessionToken) keepSecret(credentials.sessionToken);
  return credentials;
}

/** The key includes the secret, so that a target with a wrong secret does not get the cached credentials of a role. */
const keyOf = ({ roleArn, externalId = '', region, credentials }: Role): string =>
  createHash('sha256')
    .update(JSON.stringify([roleArn, externalId, region, credentials.accessKeyId, credentials.secretAccessKey]))
    .digest('base64');

async function fetchCredentials(
  { roleArn, externalId, region, credentials }: Role,
  { now, fetch }: AuthorizeTools,
): Promise<{ credentials: Credentials; expiresAt: number }> {
  const form = new URLSearchParams({
    Action: 'AssumeRole',
    Version: '2011-06-15',
    RoleArn: roleArn,
    RoleSessionName: 'sluice',
    DurationSeconds: String(durationSeconds),
    ...(externalId ? { ExternalId: externalId } : {}),
  });
  const request: OutboundRequest = {
    method: 'POST',
    origin: `https://sts.${region}.${awsDomain(region)}`,
    path: '/',
    headers: ['content-type', 'application/x-www-form-urlencoded; charset=utf-8'],
    body: Buffer.from(form.toString()),
  };
  await addSignature(request, { service: 'sts', region, credentials, now });
  const { status, body } = await fetch(request);
  const xml = body.toString('utf8');
  if (status !== 200) {
    const why = elementOf(xml, 'Message') ?? `AWS STS returned status ${status}.`;
    const refused = status >= 400 && status < 500;
    throw new GatewayError(
      refused ? 'invalid_request' : 'provider_failed',
      'role_not_assumed',
      `The role in the target's aws_role_arn could not be assumed: ${why.slice(0, 500)}`,
      refused ? { param: 'aws_role_arn' } : {},
    );
  }
  const accessKeyId = elementOf(xml, 'AccessKeyId');
  const secretAccessKey = elementOf(xml, 'SecretAccessKey');
  const sessionToken = elementOf(xml, 'SessionToken');
  const expiresAt = Date.parse(elementOf(xml, 'Expiration') ?? '');
  if (!accessKeyId || !secretAccessKey || !sessionToken || Number.isNaN(expiresAt)) {
    throw new GatewayError('provider_failed', 'upstream_invalid_response', 'AWS STS returned no credentials.');
  }
  return { credentials: { accessKeyId, secretAccessKey, sessionToken }, expiresAt };
}

/** The text of the first element with this name. STS's answers are flat, and only messages contain escapes. */
const elementOf = (xml: string, name: string): string | undefined =>
  new RegExp(`<${name}>([^<]*)</${name}>`).exec(xml)?.[1]?.trim();
