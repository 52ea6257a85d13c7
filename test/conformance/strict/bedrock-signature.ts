import { createHash, timingSafeEqual } from 'node:crypto';
import { Sha256 } from '@aws-crypto/sha256-js';
import { SignatureV4 } from '@smithy/signature-v4';
import { readAuthorization, type Authorization } from '#test/conformance/formats/bedrock/bedrock.ts';
import { Refusal, type Received } from '#apps/simulator/wire/wire-format.ts';
import { systemClock } from '#libs/kernel/clock.ts';

/** The key pair whose signatures are verified; signatures of other access keys are not. */
const checkedKeys = { accessKeyId: 'AKIASIMULATOR', secretAccessKey: 'simulator' };

const skewMaxMs = 300_000;

/** Recomputes the signature as AWS would; throws Refusal (403) when it, its date or the body's digest is wrong. */
export async function verifySignature(received: Received): Promise<void> {
  const claimed = readAuthorization(received.headers.authorization);
  if (claimed?.accessKeyId !== checkedKeys.accessKeyId) return;
  const { region, service, signedHeaders } = claimed;
  if (service !== 'bedrock') deny(`Credential should be scoped to correct service: 'bedrock'.`);
  for (const needed of ['host', 'x-amz-date']) {
    if (!signedHeaders.includes(needed)) deny(`'${needed}' must be a 'SignedHeader' in the AWS Authorization.`);
  }
  const signingDate = readDate(String(received.headers['x-amz-date']));
  if (signingDate === undefined || !String(received.headers['x-amz-date']).startsWith(claimed.date)) {
    return deny('Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP.');
  }
  if (Math.abs(systemClock.now() - signingDate.getTime()) > skewMaxMs) {
    deny(`Signature expired or not yet current: ${signingDate.toISOString()} is more than 5 minutes away.`);
  }
  const digest = received.headers['x-amz-content-sha256'];
  if (digest !== undefined && digest !== createHash('sha256').update(received.bytes).digest('hex')) {
    deny('The provided x-amz-content-sha256 header does not match what was computed.');
  }
  const expected = await sign(received, signingDate, { region, service, signedHeaders });
  const same = expected !== undefined && timingSafeEqual(Buffer.from(expected), Buffer.from(claimed.signature));
  if (same) return;
  deny(
    'The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and signing method. Consult the service documentation for details.',
  );
}

async function sign(
  { method, path, query, headers, bytes }: Received,
  signingDate: Date,
  { region, service, signedHeaders }: Pick<Authorization, 'region' | 'service' | 'signedHeaders'>,
): Promise<string | undefined> {
  const token = headers['x-amz-security-token'];
  const credentials = typeof token === 'string' ? { ...checkedKeys, sessionToken: token } : checkedKeys;
  const signer = new SignatureV4({
    credentials,
    region,
    service,
    sha256: Sha256,
    applyChecksum: signedHeaders.includes('x-amz-content-sha256'),
  });
  const signed = signedHeaders.map((name) => [name, String(headers[name] ?? '')]);
  const request = {
    method,
    protocol: 'http:',
    hostname: String(headers.host),
    path,
    query: Object.fromEntries(new URLSearchParams(query)),
    headers: Object.fromEntries(signed) as Record<string, string>,
    body: bytes,
  };
  const result = await signer.sign(request, { signingDate, signableHeaders: new Set(signedHeaders) });
  return readAuthorization(result.headers['authorization'])?.signature;
}

/** `20260301T120000Z`. */
function readDate(text: string): Date | undefined {
  const match = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(text);
  if (match === null) return undefined;
  const [, year, month, day, hour, minute, second] = match;
  return new Date(`${year}-${month}-${day}T${hour}:${minute}:${second}Z`);
}

function deny(message: string): never {
  throw new Refusal({ status: 403, message, code: 'InvalidSignatureException' });
}
