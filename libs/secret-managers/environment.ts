import { textSecret } from './fetched-secret.ts';
import { invalidReference } from './invalid-reference.ts';
import { SecretError } from './secret-error.ts';
import { secretBytesMax, type SecretManager } from './secret-manager.ts';

/**
 * No variable of Sluice itself has this prefix, so a reference can never read the master key or the database's
 * password.
 */
const form = /^SLUICE_SECRET_[A-Za-z0-9_]{1,200}$/;

/**
 * Secrets in variables of the server's processes. An operator allows a variable by its name, which must begin with
 * SLUICE_SECRET_.
 */
export function environmentSecrets(readVariable: (name: string) => string | undefined): SecretManager {
  const check: SecretManager['check'] = ({ path }) => {
    if (form.test(path)) return;
    throw invalidReference('secret_path', 'only variables whose names begin with SLUICE_SECRET_ can be referenced');
  };
  return {
    check,
    fetch(reference) {
      check(reference);
      const { slug, path } = reference;
      const value = readVariable(path);
      if (value === undefined || value === '') {
        throw new SecretError('not_found', slug, `names the variable ${path}, which is not set for this process`);
      }
      if (Buffer.byteLength(value) > secretBytesMax) {
        throw new SecretError('malformed', slug, `names a variable with more than ${secretBytesMax} bytes`);
      }
      return Promise.resolve(textSecret(slug, value));
    },
  };
}
