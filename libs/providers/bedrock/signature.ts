import { createHash } from 'node:crypto';
import { Sha256 } from '@aws-crypto/sha256-js';
import { SignatureV4 } from '@smithy/signature-v4';
import type { OutboundRequest } from '../provider.ts';

export type Credentials = { accessKeyId: string; secretAccessKey: string; sessionToken: string | undefined };

/**
 * Adds the headers of AWS Signature Version 4 to a request. It covers the path exactly as it is sent, the body and the
 * `content-type`.
 */
export async function addSignature(
  request: OutboundRequest,
  options: { service: string; region: string; credentials: Credentials; now: number },
): Promise<void> {
  const { service, region, now } = options;
  const { accessKeyId, secretAccessKey, sessionToken } = options.credentials;
  const url = new URL(request.origin);
  // The body is never a stream, because neither Bedrock nor STS gets streams.
  const body = request.body instanceof Uint8Array ? request.body : Buffer.alloc(0);
  const credentials = { accessKeyId, secretAccessKey, ...(sessionToken ? { sessionToken } : {}) };
  const signer = new SignatureV4({ service, region, sha256: Sha256, credentials });
  const signed = await signer.sign(
    {
      method: request.method,
      protocol: url.protocol,
      hostname: url.hostname,
      path: request.path,
      // Other headers are not signed, because proxies on the way can change them. The body's digest is computed here,
      // because the signer's own hash is written in JavaScript and blocks the event loop for a body of megabytes.
      headers: {
        host: url.host,
        'content-type': request.headers[request.headers.indexOf('content-type') + 1] ?? '',
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
