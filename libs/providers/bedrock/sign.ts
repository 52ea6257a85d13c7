import { GatewayError } from '#libs/kernel/errors.ts';
import type { AuthorizeTools, OutboundRequest, Upstream } from '../provider.ts';
import { assumeRole } from './assume-role.ts';
import { assertRegion } from './region.ts';
import { addSignature } from './signature.ts';

/**
 * Signs a request for Bedrock with the target's `aws_access_key_id`, `aws_secret_access_key` and, for temporary
 * credentials, `aws_session_token`, or with the role `aws_role_arn` that they can assume. Adds the headers in place.
 * Throws invalid_request, naming a missing setting, and like `assumeRole`.
 */
export async function signRequest(request: OutboundRequest, upstream: Upstream, tools: AuthorizeTools): Promise<void> {
  const { settings, secrets } = upstream;
  const accessKeyId = settings['aws_access_key_id'];
  const secretAccessKey = secrets['aws_secret_access_key']?.reveal();
  const region = settings['aws_region'];
  if (!accessKeyId) throw missing('aws_access_key_id');
  if (!secretAccessKey) throw missing('aws_secret_access_key');
  if (!region) throw missing('aws_region');
  assertRegion(region);
  const own = { accessKeyId, secretAccessKey, sessionToken: secrets['aws_session_token']?.reveal() };
  const roleArn = settings['aws_role_arn'];
  const credentials = roleArn
    ? await assumeRole({ roleArn, externalId: settings['aws_external_id'], region, credentials: own }, tools)
    : own;
  await addSignature(request, { service: 'bedrock', region, credentials, now: tools.now });
}

const missing = (setting: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'missing_credentials',
    `The target has no ${setting}: Bedrock needs aws_region, aws_access_key_id and aws_secret_access_key, or an API key.`,
    { param: setting },
  );
