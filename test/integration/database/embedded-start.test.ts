import { chown, chmod, mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import path from 'node:path';
import { pino } from 'pino';
import { describe, expect, onTestFinished, test } from 'vitest';
import {
  isRoot,
  nobody,
  pidsWith,
  query,
  scratchFolder,
  start,
  startInProcess,
  useDataDirs,
} from './embedded-harness.ts';

const usedDataDir = useDataDirs();

test('a first start creates a database that its own role, no superuser, owns', async () => {
  const server = await start({ dataDir: await scratchFolder() });
  const [row] = await query(
    server.connectionString,
    `select current_database() as database, rolname as role, rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls,
       pg_get_userbyid(datdba) as owner, pg_encoding_to_char(encoding) as encoding, datlocale as locale,
       current_setting('data_checksums') as checksums, current_setting('server_version_num')::int >= 180000 as is_new
     from pg_roles, pg_database where rolname = current_user and datname = current_database()`,
  );
  expect(row).toEqual({
    database: 'sluice',
    role: 'sluice',
    rolsuper: false,
    rolcreatedb: false,
    rolcreaterole: false,
    rolreplication: false,
    rolbypassrls: false,
    owner: 'sluice',
    encoding: 'UTF8',
    locale: 'C.UTF-8',
    checksums: 'on',
    is_new: true,
  });
  await query(server.connectionString, 'create table a (x int); create extension pgcrypto');
  expect(
    await query(server.adminConnectionString, 'select rolsuper from pg_roles where rolname = current_user'),
  ).toEqual([{ rolsuper: true }]);
});

test('a start that is told to stop leaves no server and no lock, and the next one goes on from there', async () => {
  const dataDir = await scratchFolder();
  const signal = AbortSignal.abort(new Error('told to stop'));
  await expect(start({ dataDir, signal })).rejects.toThrow('told to stop');
  expect(pidsWith(dataDir)).toEqual([]);
  const server = await start({ dataDir });
  expect(await query(server.connectionString, 'select 1 as one')).toEqual([{ one: 1 }]);
});

test('the server is durable by default, listens on loopback only and demands its password', async () => {
  const server = await start({ dataDir: await usedDataDir(), durable: true });
  const [settings] = await query(
    server.adminConnectionString,
    `select current_setting('fsync') as fsync, current_setting('full_page_writes') as full_pages,
       current_setting('synchronous_commit') as commit, current_setting('listen_addresses') as addresses,
       current_setting('unix_socket_directories') as sockets, current_setting('timezone') as zone,
       current_setting('idle_in_transaction_session_timeout') as idle, current_setting('transaction_timeout') as longest`,
  );
  expect(settings).toEqual({
    fsync: 'on',
    full_pages: 'on',
    commit: 'on',
    addresses: '127.0.0.1',
    sockets: '',
    zone: 'UTC',
    idle: '1min',
    longest: '15min',
  });
  for (const url of [server.connectionString, server.adminConnectionString].map((text) => new URL(text))) {
    url.password = 'wrong';
    await expect(query(url.href, 'select 1')).rejects.toMatchObject({ code: '28P01' });
  }
});

test('a restart keeps the data and the address, and stopping twice is as stopping once', async () => {
  const dataDir = await usedDataDir();
  const first = await start({ dataDir });
  await query(first.connectionString, 'create table kept as select 7 as x');
  await Promise.all([first.stop(), first.stop()]);
  await first.stop();
  const second = await start({ dataDir });
  expect(second.connectionString).toBe(first.connectionString);
  expect(await query(second.connectionString, 'select x from kept')).toEqual([{ x: 7 }]);
});

test('a port that somebody else took meanwhile is replaced', async () => {
  const dataDir = await usedDataDir();
  const first = await start({ dataDir });
  await first.stop();
  const taken = Number(new URL(first.connectionString).port);
  const squatter = createServer();
  await new Promise<void>((resolve) => squatter.listen(taken, '127.0.0.1', resolve));
  onTestFinished(() => void squatter.close());
  const second = await start({ dataDir });
  expect(new URL(second.connectionString).port).not.toBe(String(taken));
  expect(await query(second.connectionString, 'select 1 as x')).toEqual([{ x: 1 }]);
});

test('a data directory in use is refused, in this process and in another, and the server in it goes on', async () => {
  const dataDir = await usedDataDir();
  const server = await start({ dataDir });
  await expect(start({ dataDir })).rejects.toThrow(/Another Sluice process is using the database/);
  expect((await startInProcess({ dataDir })).answer.error).toMatch(/Another Sluice process is using the database/);
  expect(await query(server.connectionString, 'select 1 as x')).toEqual([{ x: 1 }]);
});

test('passwords are in a private file, and neither in the log nor in a command line', async () => {
  const dataDir = await scratchFolder();
  const lines: string[] = [];
  const server = await start({ dataDir, logger: pino({ level: 'trace' }, { write: (line) => lines.push(line) }) });
  await expect(query(server.connectionString, `select 'a secret value' / 0`)).rejects.toThrow(/invalid input syntax/);
  await server.stop();
  const file = path.join(dataDir, 'postgres/cluster.json');
  expect((await stat(file)).mode & 0o777).toBe(0o600);
  const { superuserPassword, applicationPassword } = JSON.parse(await readFile(file, 'utf8')) as Record<string, string>;
  const log = lines.join('');
  expect(log).toContain('ready to accept connections');
  for (const secret of [superuserPassword, applicationPassword, 'a secret value']) expect(log).not.toContain(secret);
  expect(superuserPassword).not.toBe(applicationPassword);
});

test('the command line of the server holds no password', async () => {
  const server = await start({ dataDir: await usedDataDir() });
  const commandLine = await readFile(`/proc/${server.pid}/cmdline`, 'utf8');
  expect(commandLine).toContain('listen_addresses=127.0.0.1');
  for (const url of [server.connectionString, server.adminConnectionString]) {
    expect(commandLine).not.toContain(new URL(url).password);
  }
});

test('a first start that was killed halfway is completed by the next', async () => {
  const dataDir = await usedDataDir();
  const server = await start({ dataDir });
  await query(server.adminConnectionString, 'drop database sluice');
  await query(server.adminConnectionString, 'drop role sluice');
  await server.stop();
  expect(await query((await start({ dataDir })).connectionString, 'select 1 as x')).toEqual([{ x: 1 }]);

  const halfMade = await scratchFolder();
  await mkdir(path.join(halfMade, 'postgres/data.new-1/base'), { recursive: true });
  await writeFile(path.join(halfMade, 'postgres/data.new-1/PG_VERSION'), '18');
  expect(await query((await start({ dataDir: halfMade })).connectionString, 'select 1 as x')).toEqual([{ x: 1 }]);
  expect((await readdir(path.join(halfMade, 'postgres'))).sort()).toEqual(['cluster.json', 'data', 'lock']);
});

test('data that is missing is reported as a loss, not replaced by an empty database', async () => {
  const dataDir = await usedDataDir();
  const file = path.join(dataDir, 'postgres/cluster.json');
  await writeFile(file, (await readFile(file, 'utf8')).replace('"initialised":true', '"initialised":false'));
  await (await start({ dataDir })).stop(); // as after a first start that was killed once the data was there
  await rm(path.join(dataDir, 'postgres/data'), { recursive: true });
  await expect(start({ dataDir })).rejects.toThrow(/is missing: .* does not exist/);
});

test('a lost or damaged file of passwords is named', async () => {
  const dataDir = await usedDataDir();
  const file = path.join(dataDir, 'postgres/cluster.json');
  await writeFile(file, '{');
  await expect(start({ dataDir })).rejects.toThrow(/cluster\.json is damaged/);
  await rm(file);
  await expect(start({ dataDir })).rejects.toThrow(/cluster\.json is missing/);
});

test('a server that does not come up is quoted, and the data directory is free again', async () => {
  const dataDir = await usedDataDir();
  const control = path.join(dataDir, 'postgres/data/global/pg_control');
  const whole = await readFile(control);
  await writeFile(control, 'no control file');
  await expect(start({ dataDir })).rejects.toThrow(/did not start:[^]*pg_control/);
  await writeFile(control, whole);
  expect(await query((await start({ dataDir })).connectionString, 'select 1 as x')).toEqual([{ x: 1 }]);
});

test('data of another major version of Postgres is refused with the way out', async () => {
  const dataDir = await usedDataDir();
  await writeFile(path.join(dataDir, 'postgres/data/PG_VERSION'), '17\n');
  await expect(start({ dataDir })).rejects.toThrow(
    /was created by PostgreSQL 17, but this release of Sluice includes PostgreSQL 18\..*pg_dump/,
  );
});

// Root can play everybody; an ordinary user is tested by all of the above when it runs the tests.
describe.skipIf(!isRoot)('(needs root)', () => {
  test('as root the server runs as an ordinary user, who owns the data and cannot read the passwords', async () => {
    const dataDir = await scratchFolder();
    const server = await start({ dataDir, serverUser: 'nobody' });
    const owners = await Promise.all([`/proc/${server.pid}`, `${dataDir}/postgres/data`].map((file) => stat(file)));
    expect(owners.map(({ uid }) => uid)).toEqual([nobody.uid, nobody.uid]);
    expect((await stat(`${dataDir}/postgres/cluster.json`)).uid).toBe(0);
  });

  test('as root the owner of existing data goes on running the server', async () => {
    const dataDir = await usedDataDir(); // it belongs to nobody
    const server = await start({ dataDir, serverUser: 'daemon' });
    expect((await stat(`/proc/${server.pid}`)).uid).toBe(nobody.uid);
  });

  test('as root without any ordinary user the error says what to do', async () => {
    const dataDir = await scratchFolder();
    await expect(start({ dataDir, serverUser: 'no-such-user' })).rejects.toThrow(
      /no ordinary user.*no-such-user.*DATABASE_URL/,
    );
  });

  test('an ordinary user runs the server himself, and root who starts it later serves it as that user', async () => {
    const home = await scratchFolder();
    await chown(home, nobody.uid, nobody.gid);
    await chmod(home, 0o700);
    const dataDir = path.join(home, 'data');
    const { answer, end } = await startInProcess({ dataDir }, { ...nobody, home });
    expect(answer.error).toBeUndefined();
    expect((await stat(`/proc/${answer.pid}`)).uid).toBe(nobody.uid);
    await query(answer.connectionString ?? '', 'create table kept as select 7 as x');
    expect(await end('SIGTERM')).toBe(0);
    const server = await start({ dataDir });
    expect((await stat(`/proc/${server.pid}`)).uid).toBe(nobody.uid);
    expect(await query(server.connectionString, 'select x from kept')).toEqual([{ x: 7 }]);
  });

  test('an ordinary user is told that data belongs to somebody else', async () => {
    const dataDir = await usedDataDir();
    const { answer } = await startInProcess({ dataDir }, { ...nobody, home: '/nonexistent' });
    expect(answer.error).toMatch(/belongs to another user.*SLUICE_DATA_DIR/);
  });

  test('a user ID without a name is told what initdb lacks', async () => {
    const home = await scratchFolder();
    await chown(home, 70_123, 70_123);
    const { answer } = await startInProcess({ dataDir: home }, { uid: 70_123, gid: 70_123, home });
    expect(answer.error).toMatch(/user ID without a name/);
  });
});
