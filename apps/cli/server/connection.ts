import path from 'node:path';
import { CliError } from './cli-error.ts';
import { readClientVariables, type ClientVariables } from './config.ts';
import { createClient, type Client } from './http-client.ts';
import { readProfiles } from './profiles.ts';

/** Options of every client command. */
export type ConnectionOptions = { server?: string; key?: string; profile?: string };

/** `from` names the source of the server and the key, for `sluice doctor` and `sluice whoami`. */
export type Connection = { server: string; key: string | null; from: string };

/** A client for the server that the options, the environment, the profiles or a running `npm start` name. */
export async function connect(options: ConnectionOptions): Promise<Client> {
  const { server, key } = await findConnection(options);
  if (key !== null) return createClient({ server, key });
  throw new CliError(`There is no API key for ${server}.`, { hint: 'Run sluice login, or set SLUICE_API_KEY.' });
}

/**
 * The first of these that names a server: `--server`, `--profile`, SLUICE_URL, SLUICE_PROFILE, the profile of the last
 * login, an `npm start` in this folder. A stored key is only used for the server that it was stored with.
 */
export async function findConnection(
  options: ConnectionOptions,
  variables: ClientVariables = readClientVariables(),
): Promise<Connection> {
  const { current, profiles } = await readProfiles(variables);
  const named = options.profile ?? (options.server === undefined && !variables.url ? variables.profile : undefined);
  const profile = named === undefined ? undefined : profiles[named];
  if (named !== undefined && profile === undefined) {
    const known = Object.keys(profiles).join(', ') || 'none';
    throw new CliError(`There is no profile '${named}'. Stored profiles: ${known}.`, {
      hint: `Run sluice login --profile ${named}.`,
    });
  }
  const last = current === null ? undefined : profiles[current];
  const given =
    place(options.server, '--server') ??
    place(profile?.server, `profile ${named}`) ??
    place(variables.url, 'SLUICE_URL') ??
    place(last?.server, `profile ${current}`);
  if (given === undefined) return await ofThisMachine(options, variables);
  const { server, from } = given;
  const stored = [profile, last, ...Object.values(profiles)].find((each) => each?.server === server)?.key;
  const key =
    options.key ?? (options.profile === undefined ? variables.apiKey : undefined) ?? stored ?? variables.apiKey ?? null;
  return { server, key, from };
}

const place = (server: string | undefined, from: string) =>
  server === undefined ? undefined : { server: toServer(server), from };

/** The address without `/v1` and without a trailing slash. Throws CliError (usage) for anything but an HTTP address. */
export function toServer(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.username !== '' || url.search !== '') {
    throw new CliError('The server must be an address such as https://sluice.example.com or http://127.0.0.1:8787.', {
      exitCode: 2,
    });
  }
  return url.origin + url.pathname.replace(/\/+$/, '').replace(/\/v1$/, '');
}

async function ofThisMachine(options: ConnectionOptions, variables: ClientVariables): Promise<Connection> {
  const { readRuntimeFile } = await import('../../standalone/files/runtime-file.ts');
  const running = await readRuntimeFile(variables.dataDir);
  if (running === undefined) {
    throw new CliError('No server is configured, and no npm start is running in this folder.', {
      hint: 'Run sluice login --server https://..., set SLUICE_URL and SLUICE_API_KEY, or run npm start.',
    });
  }
  const { readKeyFile } = await import('../../standalone/files/key-file.ts');
  const file = path.join(variables.dataDir, 'admin.key');
  const key = options.key ?? variables.apiKey ?? (await readKeyFile(file)) ?? null;
  return { server: toServer(running.url), key, from: `npm start in ${variables.dataDir}` };
}
