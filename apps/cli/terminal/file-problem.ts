import { CliError } from '../server/cli-error.ts';

/** Why a file cannot be read or written, by system error code. */
const reasons: Readonly<Record<string, string>> = {
  EACCES: 'permission denied',
  EDQUOT: 'your disk quota is used up',
  EISDIR: 'it is a folder',
  EIO: 'disk error',
  ENAMETOOLONG: 'its name is too long',
  ENOSPC: 'the disk is full',
  ENOTDIR: 'a part of its path is not a folder',
  EPERM: 'permission denied',
  EROFS: 'its disk is read-only',
};

/** The error for an unreadable file. */
export const unreadableFile = (file: string, error: unknown): CliError =>
  new CliError(`${file} cannot be read: ${describeReason(error, 'it does not exist')}.`, { cause: error });

/** The error for an unwritable file. */
export const unwritableFile = (file: string, error: unknown, hint: string | null = null): CliError =>
  error instanceof CliError
    ? error
    : new CliError(`${file} cannot be written: ${describeReason(error, 'its folder does not exist')}.`, {
        hint,
        cause: error,
      });

/** Why a file is not accessible. `absent` is the reason if a part of its path does not exist. */
export function describeReason(error: unknown, absent: string): string {
  if (!(error instanceof Error)) return String(error);
  const { code, syscall } = error as NodeJS.ErrnoException;
  // Node also reports this for a new folder on a read-only disk.
  if (code === 'ENOENT') return syscall === 'mkdir' ? 'its folder cannot be created' : absent;
  return (code === undefined ? undefined : reasons[code]) ?? error.message.replace(/\.$/, '');
}

/** A file-system error that was not handled elsewhere; null for any other error. */
export function toFileError(error: unknown): CliError | null {
  if (!(error instanceof Error)) return null;
  const { code = '', path } = error as NodeJS.ErrnoException;
  if (path === undefined || !(code === 'ENOENT' || code in reasons)) return null;
  return new CliError(`${path} cannot be used: ${describeReason(error, 'it does not exist')}.`, { cause: error });
}
