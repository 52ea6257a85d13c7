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
import { sessionOf } from './login-commands.ts';
import { print, showsTable } from '../terminal/output.ts';
import { printable } from '../terminal/table.ts';
import { durationOf } from '../terminal/quantities.ts';

const skewMaxMs = 30_000;
const wantedScopes = ['batches.read', 'batches.write', 'files.read', 'files.write'];

/** Adds `sluice doctor`. */
export function addDoctorCommand(program: Command): void {
  clientCommand(program, 'doctor', 'look for what keeps the command line, or a server, from working')
    .option('--local', 'check the server of this machine instead: database, files, keys, limits')
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
    yield { check: 'profiles', state: 'problem', message: `others than you can read the keys in ${file}`, hint };
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
    yield { check: 'ready', state: 'ok', message: 'it takes requests' };
  } catch (error) {
    yield { ...problem('ready', error), hint: 'Its database or its start may need help: sluice doctor --local there.' };
  }
  if (date !== null) yield checkClock(Date.parse(date) - (sentMs + Date.now()) / 2);
  if (key === null) {
    yield {
      check: 'key',
      state: 'problem',
      message: `there is none for ${server}`,
      hint: 'Run sluice login, or set SLUICE_API_KEY.',
    };
    return;
  }
  try {
    const session = await sessionOf(client);
    const { principal, workspace, scopes, expires_at: expiresAt, server: release } = session;
    yield { check: 'key', state: 'ok', message: `${principal.name ?? principal.id}, workspace ${workspace.slug}` };
    if (expiresAt !== null) yield checkExpiry(expiresAt);
    const missing = scopes === null ? [] : wantedScopes.filter((scope) => !scopes.includes(scope));
    if (missing.length === 0) yield { check: 'scopes', state: 'ok', message: 'batches and files can be used' };
    else {
      const hint = 'Somebody who may change keys can add them: sluice keys update.';
      yield { check: 'scopes', state: 'warning', message: `the key lacks ${missing.join(', ')}`, hint };
    }
    const isSame = release.version === version;
    yield {
      check: 'version',
      state: isSame ? 'ok' : 'warning',
      message: isSame ? version : `the server is ${release.version}, this command line ${version}`,
      ...(isSame ? {} : { hint: 'Use the command line of the release of the server if a command is refused.' }),
    };
  } catch (error) {
    yield problem('key', error);
  }
}

/** What an error says, as a check. Throws it again if it is a bug. */
function problem(check: string, error: unknown): Diagnosis {
  if (!(error instanceof CliError)) throw error;
  return { check, state: 'problem', message: error.message, ...(error.hint === null ? {} : { hint: error.hint }) };
}

function checkClock(skewMs: number): Diagnosis {
  if (Math.abs(skewMs) <= skewMaxMs) return { check: 'clock', state: 'ok', message: 'agrees with that of the server' };
  const message = `the clocks differ by ${durationOf(Math.abs(skewMs) / 1_000)}`;
  return { check: 'clock', state: 'warning', message, hint: 'Set both by NTP: tokens and links expire by the clock.' };
}

function checkExpiry(expiresAt: string): Diagnosis {
  const seconds = (Date.parse(expiresAt) - Date.now()) / 1_000;
  const state = seconds < 7 * 86_400 ? 'warning' : 'ok';
  return { check: 'expiry', state, message: `the key expires in ${durationOf(seconds)}` };
}
