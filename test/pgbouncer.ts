import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { onTestFinished } from 'vitest';
import { freePort } from './free-port.ts';
import { listens } from './listens.ts';

export type PgBouncer = {
  /** The connection string with the address of PgBouncer in it. */
  connectionString: string;
  /** Ends it as a crash does. */
  kill: () => Promise<void>;
  /** Starts it at the same address. */
  start: () => Promise<void>;
};

/** Why PgBouncer cannot be started here, or null. */
export const missingPgBouncer = (): string | null =>
  spawnSync('pgbouncer', ['--version']).error === undefined ? null : 'needs pgbouncer in the path (CONTRIBUTING.md)';

/** Starts PgBouncer in transaction mode in front of a database, with this many sessions. It is killed after the test. */
export async function startPgBouncer(connectionString: string, sessions: number): Promise<PgBouncer> {
  const { hostname, port, username, password, pathname } = new URL(connectionString);
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-pgbouncer-'));
  await chmod(folder, 0o755); // It refuses to run as root, and reads its files as another user.
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const ownPort = await freePort();
  const users = path.join(folder, 'users.txt');
  await writeFile(users, `"${decodeURIComponent(username)}" "${decodeURIComponent(password)}"\n`);
  const settings = path.join(folder, 'pgbouncer.ini');
  const lines = [
    '[databases]',
    `${pathname.slice(1)} = host=${hostname} port=${port}`,
    '[pgbouncer]',
    'listen_addr = 127.0.0.1',
    `listen_port = ${ownPort}`,
    'unix_socket_dir =',
    'auth_type = plain',
    `auth_file = ${users}`,
    'pool_mode = transaction',
    `default_pool_size = ${sessions}`,
    'server_login_retry = 1',
  ];
  await writeFile(settings, lines.join('\n'));
  let child: ChildProcess | undefined;
  const isRunning = (): boolean => child?.exitCode === null && child.signalCode === null;
  const kill = async (): Promise<void> => {
    if (child === undefined || !isRunning()) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  };
  const start = async (): Promise<void> => {
    const user = process.getuid?.() === 0 ? ['--user=daemon'] : [];
    child = spawn('pgbouncer', ['--quiet', ...user, settings], { stdio: ['ignore', 'ignore', 'inherit'] });
    while (!(await listens(ownPort))) {
      if (!isRunning()) throw new Error('PgBouncer ended at its start.');
      await delay(20);
    }
  };
  onTestFinished(kill);
  await start();
  const url = new URL(connectionString);
  url.host = `127.0.0.1:${ownPort}`;
  return { connectionString: url.href, kill, start };
}
