import { stat } from 'node:fs/promises';
import path from 'node:path';
import { styleText } from 'node:util';
import type { Command } from 'commander';
import { version } from '#libs/kernel/version.ts';
import { CliError } from './cli-error.ts';
import { clientCommand, type ClientOptions } from './client-command.ts';
import { readClientVariables } from './config.ts';
import { findConnection, type Connection } from './connection.ts';
import type { Diagnosis } from '../operate/doctor-local.ts';
import { createClient } from './http-client.ts';
import { readSession } from './login-commands.ts';
import { print, showsTable } from '../terminal/output.ts';
import { printable } from '../terminal/table.ts';
import { formatDuration } from '../terminal/quantities.ts';

const skewMaxMs = 30_000;
const wantedScopes = ['batches.read', 'batches.write', 'files.read', 'files.write'];

/** Adds `sluice doctor`. */
export function addDoctorCommand(program: Command): void {
  clientCommand(program, 'doctor', 'find problems of the connection, or of a server with --local')
    .option('--local', 'check the server on this machine instead: database, files, keys, limits')
    .action(async (options: ClientOptions & { local?: boolean }) => {
      let problems = 0;
      const report = (check: Diagnosis): void => {
        if (check.state === 'problem') problems += 1;
        show(check, options);
      };
      if (options.local === true) {
        const { checkLocal } = await import('../operate/doctor-local.ts');
        for await (const check of checkLocal()) report(check);
      } else for await (const check of checkClient(options)) report(check);
      if (problems > 0) process.exitCode = 1;
    });
}

function show(check: Diagnosis, options: ClientOptions): void {
  if (!showsTable(options)) {
    print(JSON.stringify(check));
    return;
  }
  const colour = { ok: 'green', warning: 'yellow', problem: 'red' } as const;
  print(
    `${styleText(colour[check.state], check.state.padEnd(8))} ${check.check.padEnd(12)} ${printable(check.message)}`,
  );
  if (check.hint !== undefined) print(`${' '.repeat(22)}${printable(check.hint)}`);
}

async function* checkClient(options: ClientOptions): AsyncGenerator<Diagnosis> {
  const file = path.join(readClientVariables().configFolder, 'profiles.json');
  const found = await stat(file).catch(() => null);
  if (found !== null && (found.mode & 0o077) !== 0) {
    const hint = `Run chmod 600 ${file}.`;
    yield { check: 'profiles', state: 'problem', message: `other users can read the keys in ${file}`, hint };
  }
  let connection: Connection;
  try {
    connection = await findConnection(options);
  } catch (error) {
    yield problem('server', error);
    return;
  }
  const { server, key, from } = connection;
  const client = createClient({ server, key });
  const sentMs = Date.now();
  let date: string | null;
  try {
    const response = await client.open('GET', '/health/live', { timeoutMs: 10_000 });
    date = response.headers.get('date');
    await response.body?.cancel();
  } catch (error) {
    yield problem('server', error);
    return;
  }
  yield { check: 'server', state: 'ok', message: `${server} (${from}) answers in ${Date.now() - sentMs} ms` };
  try {
    await client.json('GET', '/health/ready', { timeoutMs: 10_000 });
    yield { check: 'ready', state: 'ok', message: 'accepts requests' };
  } catch (error) {
    yield {
      ...problem('ready', error),
      hint: 'Check its database and start: run sluice doctor --local on that machine.',
    };
  }
  if (date !== null) yield checkClock(Date.parse(date) - (sentMs + Date.now()) / 2);
  if (key === null) {
    yield {
      check: 'key',
      state: 'problem',
      message: `no key for ${server}`,
      hint: 'Run sluice login, or set SLUICE_API_KEY.',
    };
    return;
  }
  try {
    const session = await readSession(client);
    const { principal, workspace, scopes, expires_at: expiresAt, server: release } = session;
    yield { check: 'key', state: 'ok', message: `${principal.name ?? principal.id}, workspace ${workspace.slug}` };
    if (expiresAt !== null) yield checkExpiry(expiresAt);
    const missing = scopes === null ? [] : wantedScopes.filter((scope) => !scopes.includes(scope));
    if (missing.length === 0) yield { check: 'scopes', state: 'ok', message: 'can use batches and files' };
    else {
      const hint = 'An admin can add them with sluice keys update.';
      yield { check: 'scopes', state: 'warning', message: `the key lacks ${missing.join(', ')}`, hint };
    }
    const isSame = release.version === version;
    yield {
      check: 'version',
      state: isSame ? 'ok' : 'warning',
      message: isSame ? version : `the server has ${release.version}, this command line ${version}`,
      ...(isSame ? {} : { hint: 'If a command is rejected, use the command line of the same release as the server.' }),
    };
  } catch (error) {
    yield problem('key', error);
  }
}

/** Reports an error as a problem. Rethrows a bug. */
function problem(check: string, error: unknown): Diagnosis {
  if (!(error instanceof CliError)) throw error;
  return { check, state: 'problem', message: error.message, ...(error.hint === null ? {} : { hint: error.hint }) };
}

function checkClock(skewMs: number): Diagnosis {
  if (Math.abs(skewMs) <= skewMaxMs) return { check: 'clock', state: 'ok', message: 'matches the clock of the server' };
  const message = `the clocks differ by ${formatDuration(Math.abs(skewMs) / 1_000)}`;
  return {
    check: 'clock',
    state: 'warning',
    message,
    hint: 'Synchronise both with NTP: the expiry of tokens and links depends on them.',
  };
}

function checkExpiry(expiresAt: string): Diagnosis {
  const seconds = (Date.parse(expiresAt) - Date.now()) / 1_000;
  const state = seconds < 7 * 86_400 ? 'warning' : 'ok';
  return { check: 'expiry', state, message: `the key expires in ${formatDuration(seconds)}` };
}
