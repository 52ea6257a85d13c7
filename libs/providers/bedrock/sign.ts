import { createHash } from 'node:crypto';
import { Sha256 } from '@aws-crypto/sha256-js';
import { SignatureV4 } from '@smithy/signature-v4';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { OutboundRequest, Upstream } from '../provider.ts';

const service = 'bedrock';

/**
 * Signs a request by AWS Signature Version 4 with the target's `aws_access_key_id`, `aws_secret_access_key` and, of
 * temporary credentials, `aws_session_token`; adds the headers in place. The path is signed as it is sent.
 * Throws invalid_request naming the setting that is missing.
 */
export async function signRequest(request: OutboundRequest, upstream: Upstream, now: number): Promise<void> {
  const { settings, secrets } = upstream;
  const accessKeyId = settings['aws_access_key_id'];
  const secretAccessKey = secrets['aws_secret_access_key']?.reveal();
  const sessionToken = secrets['aws_session_token']?.reveal();
  const region = settings['aws_region'];
  if (!accessKeyId) throw missing('aws_access_key_id');
  if (!secretAccessKey) throw missing('aws_secret_access_key');
  if (!region) throw missing('aws_region');
  const url = new URL(request.origin);
  // Bedrock has no pass-through areas, so nothing streams out to it.
  const body = request.body instanceof Uint8Array ? request.body : Buffer.alloc(0);
  const signer = new SignatureV4({
    service,
    region,
    sha256: Sha256,
    credentials: { accessKeyId, secretAccessKey, ...(sessionToken ? { sessionToken } : {}) },
  });
  const signed = await signer.sign(
    {
      method: request.method,
      protocol: url.protocol,
      hostname: url.hostname,
      path: request.path,
      // Nothing else is signed: what stands between us and the provider may change the other headers. The body's digest is
      // given, because the signer's own hash, in JavaScript, holds the process up for a body of megabytes.
      headers: {
        host: url.host,
        'content-type': 'application/json',
        'x-amz-content-sha256': createHash('sha256').update(body).digest('hex'),
      },
      body,
    },
    { signingDate: new Date(now) },
  );
  for (const [name, value] of Object.entries(signed.headers)) {
    if (name !== 'host' && name !== 'content-type') request.headers.push(name, value);
  }
}

const missing = (setting: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'missing_credentials',
    `The target has no ${setting}: Bedrock needs aws_region, aws_access_key_id and aws_secret_access_key, or an API key.`,
    { param: setting },
  );
