import { homedir } from 'node:os';
import path from 'node:path';

export type ClientVariables = {
  /** SLUICE_URL: the server, with or without `/v1`. */
  url: string | undefined;
  /** SLUICE_API_KEY */
  apiKey: string | undefined;
  /** SLUICE_PROFILE: the name of a profile that `sluice login` stored. */
  profile: string | undefined;
  /** Absolute. Contains profiles with their keys. */
  configFolder: string;
  /** Absolute. Contains the state of earlier runs; losing it costs at most an upload. */
  stateFolder: string;
  /** Absolute. Where `npm start` on this machine stores its address and key. */
  dataDir: string;
};

/** The variables of the client commands. They are read without zod, which would take half of the start-up time. */
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

/** Whether the terminal does not support control sequences, as in some editors. */
export const isPlainTerminal = (): boolean => process.env['TERM'] === 'dumb';

/** Whether the locale supports characters beyond ASCII. */
export const isUtf8 = (): boolean =>
  /utf-?8/i.test(process.env['LC_ALL'] || process.env['LC_CTYPE'] || process.env['LANG'] || '');
