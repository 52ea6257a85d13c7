import { CliError } from '../server/cli-error.ts';

/** What keeps a file from being read or written, by the code that the system has for it. */
const reasons: Readonly<Record<string, string>> = {
  EACCES: 'you have no right to it',
  EDQUOT: 'your quota of the disk is used up',
  EISDIR: 'it is a folder',
  EIO: 'the disk fails',
  ENAMETOOLONG: 'its name is too long',
  ENOSPC: 'the disk is full',
  ENOTDIR: 'a part of its path is no folder',
  EPERM: 'you have no right to it',
  EROFS: 'its disk is read-only',
};

/** A file that cannot be read, as an error that people understand. */
export const cannotRead = (file: string, error: unknown): CliError =>
  new CliError(`${file} cannot be read: ${reasonOf(error, 'it does not exist')}.`, { cause: error });

/** A file that cannot be written, as an error that people understand. */
export const cannotWrite = (file: string, error: unknown, hint: string | null = null): CliError =>
  error instanceof CliError
    ? error
    : new CliError(`${file} cannot be written: ${reasonOf(error, 'its folder does not exist')}.`, {
        hint,
        cause: error,
      });

/** Why a file could not be used. `absent` is what it means that something of its path does not exist. */
export function reasonOf(error: unknown, absent: string): string {
  if (!(error instanceof Error)) return String(error);
  const { code, syscall } = error as NodeJS.ErrnoException;
  // Also what Node says of a folder that is to be made on a disk that is read-only.
  if (code === 'ENOENT') return syscall === 'mkdir' ? 'its folder cannot be made' : absent;
  return (code === undefined ? undefined : reasons[code]) ?? error.message.replace(/\.$/, '');
}

/** An error of the file system that nothing else has explained; null for any other error. */
export function problemOfFile(error: unknown): CliError | null {
  if (!(error instanceof Error)) return null;
  const { code = '', path } = error as NodeJS.ErrnoException;
  if (path === undefined || !(code === 'ENOENT' || code in reasons)) return null;
  return new CliError(`${path} cannot be used: ${reasonOf(error, 'it does not exist')}.`, { cause: error });
}
