import type { Command } from 'commander';
import { CliError } from './cli-error.ts';
import { clientCommand, type ClientOptions } from './client-command.ts';
import { readClientVariables } from './config.ts';
import { connect, findConnection, toServer } from './connection.ts';
import { createClient, type Client } from './http-client.ts';
import { note, print, printObject, printRows, type OutputOptions } from '../terminal/output.ts';
import { readProfiles, writeProfiles } from './profiles.ts';

/** The answer of GET /v1/session. */
export type Session = {
  workspace: { id: string; name: string; slug: string };
  principal: { type: string; id: string; name: string | null; role: string | null; organisation_role: string | null };
  key_id: string;
  scopes: string[] | null;
  expires_at: string | null;
  server: { version: string; started_at: string };
};

/** Adds the commands about servers and keys: login, logout, whoami, profiles. */
export function addLoginCommands(program: Command): void {
  clientCommand(program, 'login', 'check and store a server and an API key')
    .addHelpText(
      'after',
      '\nPrompts for the key without showing it, or reads it from stdin:\n  sluice login --server https://... < key.txt',
    )
    .action(logIn);

  program
    .command('logout')
    .description('delete a stored profile; its key stays valid until it is revoked')
    .option('--profile <name>', 'default: the current one')
    .option('--json', 'also print {"profile"}')
    .action(logOut);

  clientCommand(program, 'whoami', 'show the server, the owner of the key and its scopes').action(
    async (options: ClientOptions) => {
      const connection = await findConnection(options);
      const {
        workspace,
        principal,
        scopes,
        expires_at: expiresAt,
        key_id: keyId,
        server,
      } = await readSession(await connect(options));
      printObject(
        {
          server: connection.server,
          from: connection.from,
          version: server.version,
          workspace: workspace.slug,
          workspace_id: workspace.id,
          type: principal.type,
          name: principal.name,
          role: principal.role ?? principal.organisation_role,
          key_id: keyId,
          scopes: scopes === null ? 'all' : scopes.join(' '),
          expires_at: expiresAt,
        },
        options,
      );
    },
  );

  program
    .command('profiles')
    .description('list the stored profiles')
    .option('--json', 'print one JSON object per line (default in a pipe)')
    .option('--table', 'print tables (default on a terminal)')
    .action(async (options: OutputOptions) => {
      const { current, profiles } = await readProfiles(readClientVariables());
      const rows = Object.entries(profiles).map(([name, { server }]) => ({ name, server, current: name === current }));
      printRows(
        rows,
        [
          ['name', (row) => row.name],
          ['current', (row) => (row.current ? 'yes' : '')],
          ['server', (row) => row.server],
        ],
        options,
      );
      if (rows.length === 0) note('To store one: sluice login --server https://...');
    });
}

/** The owner and scopes of a client's key. Throws ApiError for an unknown key. */
export const readSession = async (client: Client): Promise<Session> => await client.json('GET', '/v1/session');

async function logIn(options: ClientOptions): Promise<void> {
  const variables = readClientVariables();
  const stored = await readProfiles(variables);
  const name = options.profile ?? 'default';
  const known = options.server ?? variables.url ?? stored.profiles[name]?.server;
  const server = toServer(known ?? (await ask('Server (https://...): ', { isHidden: false })));
  const key = (options.key ?? (await readKey())).trim();
  if (!/^[\x21-\x7e]{1,8000}$/.test(key)) {
    throw new CliError('The key is empty or contains invalid characters.', {
      hint: 'Pass the key on stdin: sluice login --server https://... < key.txt',
    });
  }
  const { protocol, hostname } = new URL(server);
  if (protocol === 'http:' && !/^(?:localhost|127(?:\.\d+){3}|\[::1\])$/.test(hostname))
    note(`warning: ${server} does not use TLS, so the key is sent unencrypted.`);
  const { workspace, principal } = await readSession(createClient({ server, key }));
  const profiles = { ...stored.profiles, [name]: { server, key } };
  const file = await writeProfiles(variables, { current: name, profiles });
  note(`Logged in to ${server} as ${principal.name ?? principal.id}, workspace ${workspace.slug}.`);
  note(`Stored as profile ${name} in ${file}.`);
}

async function logOut({ profile, json = false }: { profile?: string; json?: boolean }): Promise<void> {
  const variables = readClientVariables();
  const { current, profiles } = await readProfiles(variables);
  const name = profile ?? current;
  if (name === null || profiles[name] === undefined)
    throw new CliError('There is no such profile.', { hint: 'To list them: sluice profiles' });
  const { [name]: _forgotten, ...rest } = profiles;
  await writeProfiles(variables, {
    current: current === name ? (Object.keys(rest)[0] ?? null) : current,
    profiles: rest,
  });
  if (json) print(JSON.stringify({ profile: name }));
  note(`Deleted profile ${name}.`);
}

async function readKey(): Promise<string> {
  if (process.stdin.isTTY) return await ask('API key (not shown): ', { isHidden: true });
  let text = '';
  for await (const piece of process.stdin) {
    text += String(piece);
    if (text.length > 10_000) break;
  }
  return text;
}

async function ask(question: string, { isHidden }: { isHidden: boolean }): Promise<string> {
  if (!process.stdin.isTTY)
    throw new CliError('No server is configured.', { exitCode: 2, hint: 'Add --server https://...' });
  const { createInterface } = await import('node:readline/promises');
  const { Writable } = await import('node:stream');
  const silent = new Writable({ write: (_chunk, _encoding, done) => done() });
  process.stderr.write(question);
  const lines = createInterface({ input: process.stdin, output: isHidden ? silent : process.stderr, terminal: true });
  const controller = new AbortController();
  lines.on('SIGINT', () => controller.abort());
  try {
    return await lines.question('', { signal: controller.signal });
  } catch {
    throw new CliError('Cancelled.', { exitCode: 130 });
  } finally {
    lines.close();
    if (isHidden) process.stderr.write('\n');
  }
}
