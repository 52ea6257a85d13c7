import { spawn } from 'node:child_process';
import { readFile, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import pg from 'pg';
import { expect, onTestFinished, test } from 'vitest';
import { findServerProcesses } from '#libs/database/embedded/server-processes.ts';
import type { EmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { pino } from 'pino';
import { sql } from 'kysely';
import { isAlive, pidsWith, query, start, startInProcess, until, useDataDirs } from './embedded-harness.ts';

const usedDataDir = useDataDirs();

test('the server ends soon after the process that started it is killed', async () => {
  const { end, answer } = await startInProcess({ dataDir: await usedDataDir() });
  await end('SIGKILL');
  await until(() => !isAlive(answer.pid ?? 0));
});

test('an orphaned server is stopped by the next start, which loses nothing', async () => {
  const dataDir = await usedDataDir();
  const { end, answer } = await startInProcess({ dataDir });
  const orphan = answer.pid ?? 0;
  await query(answer.connectionString ?? '', 'create table kept as select 7 as x');
  for (const pid of pidsWith(`kill -INT "$0" ${orphan}`)) process.kill(pid, 'SIGKILL'); // no watchdog
  await end('SIGKILL');
  expect(isAlive(orphan)).toBe(true);

  const server = await start({ dataDir });
  expect(isAlive(orphan)).toBe(false);
  expect(server.pid).not.toBe(orphan);
  expect(await query(server.connectionString, 'select x from kept')).toEqual([{ x: 7 }]);
});

test('an orphaned server that hangs is killed', async () => {
  const dataDir = await usedDataDir();
  const { end, answer } = await startInProcess({ dataDir });
  const orphan = answer.pid ?? 0;
  await query(answer.connectionString ?? '', 'create table kept as select 7 as x');
  for (const pid of pidsWith(`kill -INT "$0" ${orphan}`)) process.kill(pid, 'SIGKILL');
  await end('SIGKILL');
  process.kill(orphan, 'SIGSTOP');
  const server = await start({ dataDir, stopTimeoutMs: 100 });
  expect(isAlive(orphan)).toBe(false);
  expect(await query(server.connectionString, 'select x from kept')).toEqual([{ x: 7 }]);
});

test('a postmaster.pid whose number now belongs to another program does not hinder, nor harm that program', async () => {
  const dataDir = await usedDataDir();
  const server = await start({ dataDir });
  const pidFile = path.join(dataDir, 'postgres/data/postmaster.pid');
  const { uid, gid } = await stat(path.dirname(pidFile));
  await query(server.connectionString, 'create table kept as select 7 as x');
  await killAndWait(server);
  const left = await readFile(pidFile, 'utf8'); // a killed postmaster leaves it behind
  const stranger = spawn('sleep', ['600'], { uid, gid, cwd: '/' });
  onTestFinished(() => void stranger.kill('SIGKILL'));
  await writeFile(pidFile, left.replace(/^\d+/, String(stranger.pid)));

  const again = await start({ dataDir });
  expect(await query(again.connectionString, 'select x from kept')).toEqual([{ x: 7 }]);
  expect(isAlive(stranger.pid ?? 0)).toBe(true);
});

test('a server that dies is noticed, and starts again on the same address with everything acknowledged', async () => {
  const dataDir = await usedDataDir();
  const first = await start({ dataDir });
  await query(first.connectionString, 'create table acknowledged (n int)');
  const pool = createPool(
    { connectionString: first.connectionString, applicationName: 'x' },
    pino({ level: 'silent' }),
  );
  onTestFinished(() => pool.end());
  const db = createDatabase(pool);
  const acknowledged: number[] = [];
  const inserting = (async () => {
    for (let n = 0; ; n += 1) {
      await sql`insert into acknowledged values (${n})`.execute(db);
      acknowledged.push(n);
    }
  })();
  const failed = inserting.catch((error: unknown) => error);
  await until(() => acknowledged.length >= 50);
  const exit = await killAndWait(first);
  expect(exit).toEqual({ code: null, signal: 'SIGKILL', requested: false });
  expect(await failed).toBeInstanceOf(Error);

  const second = await start({ dataDir });
  expect(second.connectionString).toBe(first.connectionString);
  const { rows } = await sql<{ n: number }>`select n from acknowledged`.execute(db); // the same pool, reconnected
  expect(rows.map(({ n }) => n)).toEqual(expect.arrayContaining(acknowledged));
});

test('sessions that outlive a killed postmaster are ended before the next start', async () => {
  const dataDir = await usedDataDir();
  const first = await start({ dataDir });
  const client = new pg.Client({ connectionString: first.connectionString });
  client.on('error', () => {});
  await client.connect();
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  const backend = rows[0]?.pid ?? 0;
  // Busy without ever waiting, so that it does not notice by itself.
  void client.query('do $$ begin loop null; end loop; end $$').catch(() => {});
  await until(async () => {
    const active = await query(
      first.adminConnectionString,
      `select from pg_stat_activity where pid = ${backend} and state = 'active'`,
    );
    return active.length === 1;
  });
  await killAndWait(first);
  expect(isAlive(backend)).toBe(true);
  const second = await start({ dataDir });
  expect(isAlive(backend)).toBe(false);
  expect(await query(second.connectionString, 'select 1 as x')).toEqual([{ x: 1 }]);
});

test('a killed session makes the server restart its sessions, not end', async () => {
  const server = await start({ dataDir: await usedDataDir() });
  let ended = false;
  server.onExit(() => {
    ended = true;
  });
  const pool = createPool(
    { connectionString: server.connectionString, applicationName: 'x' },
    pino({ level: 'silent' }),
  );
  onTestFinished(() => pool.end());
  const { rows } = await pool.query<{ pid: number }>('select pg_backend_pid() as pid');
  process.kill(rows[0]?.pid ?? 0, 'SIGKILL');
  await until(async () =>
    pool
      .query('select 1')
      .then(() => true)
      .catch(() => false),
  );
  expect(ended).toBe(false);
});

test('a stop that was asked for is no exit to report', async () => {
  const server = await start({ dataDir: await usedDataDir() });
  let reported = false;
  server.onExit(() => {
    reported = true;
  });
  await server.stop();
  await new Promise((resolve) => setImmediate(resolve));
  expect(reported).toBe(false);
});

test('only the processes of the given data directory are found', async () => {
  const dataDir = await usedDataDir();
  const [server] = await Promise.all([start({ dataDir }), start({ dataDir: await usedDataDir() })]);
  const [row] = await query(server.connectionString, `select current_setting('cluster_name') as name`);
  const name = String(row?.name);
  const found = await findServerProcesses(path.join(dataDir, 'postgres/data'), name);
  expect(found.filter(({ isPostmaster }) => isPostmaster)).toEqual([{ pid: server.pid, isPostmaster: true }]);
  expect(new Set(found.map(({ pid }) => pid))).toEqual(new Set([server.pid, ...pidsWith(`postgres: ${name}: `)]));
  expect(found.length).toBeGreaterThan(3);
  expect(await findServerProcesses(path.join(dataDir, 'postgres/dat'), 'sluice-other')).toEqual([]);
});

async function killAndWait(server: EmbeddedPostgres): Promise<unknown> {
  const exited = new Promise((resolve) => server.onExit(resolve));
  process.kill(server.pid, 'SIGKILL');
  return exited;
}
