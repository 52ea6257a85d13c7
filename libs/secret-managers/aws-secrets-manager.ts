import { addSignature } from '#libs/providers/bedrock/signature.ts';
import { assertRegion, awsDomain } from '#libs/providers/bedrock/region.ts';
import { textSecret } from './fetched-secret.ts';
import { parseAnswer } from './parse-answer.ts';
import { SecretError } from './secret-error.ts';
import { invalidReference } from './invalid-reference.ts';
import type { SecretManager, Send } from './secret-manager.ts';

/** Errors that end only when the credentials or their rights change. */
const denials = /^(?:AccessDenied|UnrecognizedClient|InvalidSignature|ExpiredToken|InvalidClientTokenId)/;

/**
 * Secrets of AWS Secrets Manager, by its action GetSecretValue, signed with an access key. The path is the name or the
 * ARN of the secret; its current version (AWSCURRENT) is used.
 */
export function awsSecrets({ send, now }: { send: Send; now: () => number }): SecretManager {
  return {
    check({ auth, path }) {
      assertRegion(auth['aws_region'] ?? '');
      if (!/^[\w/+=.@:!-]+$/.test(path)) {
        throw invalidReference('secret_path', 'expected the name or the ARN of a secret, such as prod/openai');
      }
    },
    async fetch(reference) {
      const { slug, auth, secrets, path } = reference;
      const region = auth['aws_region'] ?? '';
      assertRegion(region);
      const url = new URL(`https://secretsmanager.${region}.${awsDomain(region)}/`);
      const request = {
        method: 'POST' as const,
        origin: url.origin,
        path: '/',
        headers: ['content-type', 'application/x-amz-json-1.1', 'x-amz-target', 'secretsmanager.GetSecretValue'],
        body: Buffer.from(JSON.stringify({ SecretId: path })),
      };
      const credentials = {
        accessKeyId: auth['aws_access_key_id'] ?? '',
        secretAccessKey: secrets?.['aws_secret_access_key']?.reveal() ?? '',
        sessionToken: undefined,
      };
      await addSignature(request, { service: 'secretsmanager', region, credentials, now: now() });
      const { status, body } = await send(reference, { ...request, url });
      const answer = parseAnswer(slug, body);
      if (status === 200) {
        if (typeof answer['SecretString'] === 'string') return textSecret(slug, answer['SecretString']);
        throw new SecretError('malformed', slug, 'names a secret that is not text');
      }
      const { __type: type } = answer;
      const kind = (typeof type === 'string' ? (type.split('#').at(-1) ?? '') : '').slice(0, 60);
      const shown = /^\w+$/.test(kind) ? `${status}, ${kind}` : String(status);
      if (kind === 'ResourceNotFoundException') {
        throw new SecretError('not_found', slug, 'names a secret that does not exist in AWS Secrets Manager');
      }
      if (denials.test(kind)) throw new SecretError('denied', slug, `was rejected by AWS Secrets Manager (${shown})`);
      throw new SecretError('unavailable', slug, `cannot be fetched: AWS Secrets Manager returned ${shown}`);
    },
  };
}
