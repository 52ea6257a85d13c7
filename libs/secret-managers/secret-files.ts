import { constants } from 'node:fs';
import { open, realpath } from 'node:fs/promises';
import path from 'node:path';
import { textSecret } from './fetched-secret.ts';
import { invalidReference } from './invalid-reference.ts';
import { SecretError } from './secret-error.ts';
import { secretBytesMax, type SecretManager } from './secret-manager.ts';

/**
 * Secrets in files below a folder that the operator names. Symlinks within the folder are followed, because Kubernetes
 * mounts secrets that way. A symlink that points outside is refused. null: there is no folder.
 */
export function fileSecrets(folder: string | null): SecretManager {
  const check: SecretManager['check'] = ({ path: name }) => {
    if (folder === null) {
      const why =
        'secrets in files are not enabled on this server. The operator can set a folder for them (SLUICE_SECRETS_FOLDER)';
      throw invalidReference('manager_type', why);
    }
    const isPlain = name.split('/').every((part) => part !== '' && part !== '.' && part !== '..');
    if (isPlain && !/[\0\\]/.test(name)) return;
    throw invalidReference('secret_path', 'expected the path of a file in the secrets folder, such as openai/key');
  };
  return {
    check,
    async fetch(reference) {
      check(reference);
      const { slug, path: name } = reference;
      try {
        const root = await realpath(folder ?? '');
        const file = await realpath(path.join(root, name));
        if (!file.startsWith(root.endsWith(path.sep) ? root : root + path.sep)) {
          throw new SecretError('malformed', slug, 'names a file outside the secrets folder');
        }
        return textSecret(slug, await readText(slug, file));
      } catch (error) {
        if (error instanceof SecretError) throw error;
        throw asSecretError(slug, error);
      }
    },
  };
}

async function readText(slug: string, file: string): Promise<string> {
  // A named pipe would block forever without O_NONBLOCK, and the path has no symlink left to follow.
  const handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    if (!(await handle.stat()).isFile()) throw new SecretError('malformed', slug, 'names something that is not a file');
    // One byte more than allowed: the file may have grown since its size was asked for.
    const buffer = Buffer.alloc(secretBytesMax + 1);
    let length = 0;
    for (;;) {
      const { bytesRead } = await handle.read(buffer, length, buffer.length - length, length);
      length += bytesRead;
      if (bytesRead === 0 || length === buffer.length) break;
    }
    if (length > secretBytesMax) {
      throw new SecretError('malformed', slug, `names a file with more than ${secretBytesMax} bytes`);
    }
    // Editors and `echo` end a file with a line break.
    return buffer.toString('utf8', 0, length).replace(/\r?\n$/, '');
  } finally {
    await handle.close();
  }
}

/** The system's message would reveal the location of the folder. */
function asSecretError(slug: string, error: unknown): SecretError {
  const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
  if (code === 'ENOENT' || code === 'ENOTDIR') {
    return new SecretError('not_found', slug, 'names a file that does not exist', error);
  }
  if (code === 'EACCES' || code === 'EPERM') {
    return new SecretError('denied', slug, 'names a file that this process has no permission to read', error);
  }
  return new SecretError('unavailable', slug, `names a file that cannot be read (${code})`, error);
}
