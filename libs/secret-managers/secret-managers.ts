import type { ManagerType } from '#libs/contracts/secret-references.ts';
import { awsSecrets } from './aws-secrets-manager.ts';
import { azureSecrets } from './azure-key-vault.ts';
import { environmentSecrets } from './environment.ts';
import type { FetchedSecret } from './fetched-secret.ts';
import { SecretError } from './secret-error.ts';
import { fileSecrets } from './secret-files.ts';
import {
  secretBytesMax,
  type LiveSecretReference,
  type ReferenceForm,
  type SecretManager,
  type Send,
} from './secret-manager.ts';
import { vaultSecrets, type KubernetesOptions } from './vault.ts';

export type SecretManagers = {
  /** Throws GatewayError `invalid_request` for a reference that could never be fetched. */
  check(form: ReferenceForm): void;
  /** Fetches the secret from its manager. Throws SecretError, or GatewayError `invalid_request`. */
  fetch(reference: LiveSecretReference): Promise<FetchedSecret>;
};

/** All secret managers. */
export function createSecretManagers(options: {
  send: Send;
  /** Throws for an address that must not be called. */
  checkDestination: (url: URL) => void;
  readVariable: (name: string) => string | undefined;
  /** null: no secrets in files. */
  folder: string | null;
  kubernetes: KubernetesOptions;
  /** Epoch milliseconds, for signatures. */
  now: () => number;
  monotonicMs: () => number;
}): SecretManagers {
  const { send, checkDestination, readVariable, folder, kubernetes, now, monotonicMs } = options;
  const managers: Readonly<Record<ManagerType, SecretManager>> = {
    hashicorp_vault: vaultSecrets({ send, checkDestination, now: monotonicMs, kubernetes }),
    aws_sm: awsSecrets({ send, now }),
    azure_kv: azureSecrets({ send, now }),
    environment: environmentSecrets(readVariable),
    file: fileSecrets(folder),
  };
  return {
    check: (form) => managers[form.managerType].check(form),
    async fetch(reference) {
      const { slug } = reference;
      if (reference.secrets === null) {
        throw new SecretError('denied', slug, 'has credentials that cannot be decrypted. Send its auth_config again');
      }
      const secret = await managers[reference.managerType].fetch(reference);
      if (secret.sizeBytes <= secretBytesMax) return secret;
      throw new SecretError('malformed', slug, `holds a secret with more than ${secretBytesMax} bytes`);
    },
  };
}
