import { homedir } from 'node:os';
import path from 'node:path';

export type ClientVariables = {
  /** SLUICE_URL: the server, with or without `/v1`. */
  url: string | undefined;
  /** SLUICE_API_KEY */
  apiKey: string | undefined;
  /** SLUICE_PROFILE: the name of a profile that `sluice login` stored. */
  profile: string | undefined;
  /** Absolute. Holds profiles, in which there are keys. */
  configFolder: string;
  /** Absolute. Holds what earlier runs have to be remembered for; losing it costs an upload, no more. */
  stateFolder: string;
  /** Absolute. Where an `npm start` of this machine would say its address and keep its key. */
  dataDir: string;
};

/** The variables of the client commands. They are read by hand, because zod alone would take half of the time to start. */
export function readClientVariables(env: NodeJS.ProcessEnv = process.env): ClientVariables {
  const given = (name: string): string | undefined => {
    const value = env[name]?.trim();
    return value === '' ? undefined : value;
  };
  // The XDG Base Directory Specification says to ignore relative paths.
  const folder = (name: string, fallback: string): string => {
    const base = given(name);
    return path.join(base && path.isAbsolute(base) ? base : path.join(homedir(), fallback), 'sluice');
  };
  return {
    url: given('SLUICE_URL'),
    apiKey: given('SLUICE_API_KEY'),
    profile: given('SLUICE_PROFILE'),
    configFolder: folder('XDG_CONFIG_HOME', '.config'),
    stateFolder: folder('XDG_STATE_HOME', '.local/state'),
    dataDir: path.resolve(given('SLUICE_DATA_DIR') ?? '.data'),
  };
}

/** The value of a variable that a file of records refers to; undefined if it is not set or empty. */
export const variableOf = (name: string): string | undefined => process.env[name] || undefined;

/** Whether the terminal obeys nothing, as those of editors. */
export const isPlainTerminal = (): boolean => process.env['TERM'] === 'dumb';

/** Whether the locale has more signs than ASCII has. */
export const isUtf8 = (): boolean =>
  /utf-?8/i.test(process.env['LC_ALL'] || process.env['LC_CTYPE'] || process.env['LANG'] || '');
