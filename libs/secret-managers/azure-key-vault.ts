import { GatewayError } from '#libs/kernel/errors.ts';
import { createEntraTokens, readEntraClient } from '#libs/providers/azure/entra-token.ts';
import { textSecret } from './fetched-secret.ts';
import { invalidReference } from './invalid-reference.ts';
import { parseAnswer } from './parse-answer.ts';
import { SecretError } from './secret-error.ts';
import type { SecretManager, Send } from './secret-manager.ts';

const scope = 'https://vault.azure.net/.default';
const apiVersion = '7.4';

/**
 * Secrets of Azure Key Vault, by its operation Get Secret, with a token of Microsoft Entra for a client secret. The path
 * is the name of the secret, or the name and a version.
 */
export function azureSecrets({ send, now }: { send: Send; now: () => number }): SecretManager {
  const tokens = createEntraTokens();

  const check: SecretManager['check'] = ({ auth, path }) => {
    const url = URL.parse(auth['azure_vault_url'] ?? '');
    // The token opens all vaults of the client, so it is only sent to Azure.
    if (url === null || url.protocol !== 'https:' || !/^[a-z0-9-]{3,24}\.vault\.azure\.net$/.test(url.host)) {
      const why = 'expected the URL of a vault, such as https://example.vault.azure.net';
      throw invalidReference('auth_config.azure_vault_url', why);
    }
    if (!/^[A-Za-z0-9-]{1,127}(?:\/[A-Za-z0-9]{1,64})?$/.test(path)) {
      throw invalidReference(
        'secret_path',
        'expected the name of a secret, or its name and version, such as openai-key',
      );
    }
  };

  return {
    check,
    async fetch(reference) {
      check(reference);
      const { slug, auth, secrets, path } = reference;
      const settings = { ...auth, azure_entra_scope: scope };
      const client = readEntraClient({ settings, secrets: secrets ?? {} });
      if (client === null) throw new SecretError('denied', slug, 'has no client credentials to sign in with');
      const token = await tokens(client, {
        now: now(),
        fetch: async (request) => {
          const url = new URL(request.origin + request.path);
          const body = request.body instanceof Uint8Array ? { body: Buffer.from(request.body) } : {};
          const answer = await send(reference, { method: request.method, headers: request.headers, url, ...body });
          return { ...answer, headers: {} };
        },
        keepSecret: () => {},
      }).catch((error: unknown) => {
        if (error instanceof SecretError || !(error instanceof GatewayError)) throw error;
        const fault = error.kind === 'invalid_request' ? 'denied' : 'unavailable';
        throw new SecretError(fault, slug, `cannot sign in: ${error.message.replace(/\.$/, '')}`, error);
      });
      const url = new URL(`secrets/${path}?api-version=${apiVersion}`, new URL(auth['azure_vault_url'] ?? '').origin);
      const { status, body } = await send(reference, {
        method: 'GET',
        url,
        headers: ['authorization', `Bearer ${token}`],
      });
      if (status === 404)
        throw new SecretError('not_found', slug, 'names a secret that does not exist in its Azure Key Vault');
      if (status === 401 || status === 403) {
        throw new SecretError('denied', slug, `was rejected by its Azure Key Vault (${status})`);
      }
      if (status !== 200) {
        throw new SecretError('unavailable', slug, `cannot be fetched: its Azure Key Vault returned status ${status}`);
      }
      const { value } = parseAnswer(slug, body);
      if (typeof value === 'string') return textSecret(slug, value);
      throw new SecretError('malformed', slug, 'names a secret that is not text');
    },
  };
}
