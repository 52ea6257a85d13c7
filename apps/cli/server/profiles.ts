import { mkdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { writeWhole } from '../../standalone/files/write-whole.ts';
import { CliError } from './cli-error.ts';
import type { ClientVariables } from './config.ts';
import { unreadableFile, unwritableFile } from '../terminal/file-problem.ts';

/** A server with its key. The key is never sent to another server. */
export type Profile = { server: string; key: string };
export type Profiles = { current: string | null; profiles: Record<string, Profile> };

const fileOf = ({ configFolder }: Pick<ClientVariables, 'configFolder'>): string =>
  path.join(configFolder, 'profiles.json');

/** The profiles that `sluice login` stored; none if there is no file. Throws CliError for a damaged file. */
export async function readProfiles(variables: Pick<ClientVariables, 'configFolder'>): Promise<Profiles> {
  const file = fileOf(variables);
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { current: null, profiles: {} };
    throw unreadableFile(file, error);
  }
  try {
    const { current, profiles } = JSON.parse(text) as Profiles;
    const isProfile = (each: unknown): boolean =>
      typeof (each as Profile).server === 'string' && typeof (each as Profile).key === 'string';
    if (!Object.values(profiles).every(isProfile)) throw new Error('not a profile');
    return { current, profiles };
  } catch {
    throw new CliError(`${file} is damaged.`, { hint: 'Delete it and run sluice login.' });
  }
}

/**
 * Replaces the stored profiles. Only the owner of the file can read it. Returns its path. Throws CliError if it cannot be
 * written.
 */
export async function writeProfiles(
  variables: Pick<ClientVariables, 'configFolder'>,
  profiles: Profiles,
): Promise<string> {
  const file = fileOf(variables);
  try {
    await mkdir(path.dirname(file), { recursive: true, mode: 0o700 });
    await writeWhole(file, `${JSON.stringify(profiles, null, 2)}\n`, 0o600);
  } catch (error) {
    throw unwritableFile(
      file,
      error,
      'Nothing was stored. Set XDG_CONFIG_HOME to another folder, or set SLUICE_URL and SLUICE_API_KEY.',
    );
  }
  return file;
}
