import { expect, test } from 'vitest';
import { parsePsOutput, worksOn } from './server-processes.ts';

const dataDir = '/home/me/my project/.data/postgres/data';
const name = 'sluice-0123456789ab';

test('a postmaster is known by its data directory, its children by the cluster name in their title', () => {
  const works = (command: string) => worksOn(command, dataDir, name);
  expect(works(`/opt/bin/postgres -D ${dataDir} -c cluster_name=${name}`)).toBe(true);
  expect(works(`/opt/bin/postgres -D ${dataDir}`)).toBe(true);
  expect(works(`postgres: ${name}: checkpointer `)).toBe(true);
  expect(works(`postgres: ${name}: sluice sluice 127.0.0.1(33714) idle`)).toBe(true);
});

test('other servers and programs that only mention the directory are not taken for ours', () => {
  const works = (command: string) => worksOn(command, dataDir, name);
  expect(works(`/opt/bin/postgres -D ${dataDir}2 -c port=1`)).toBe(false);
  expect(works(`tail -f /opt/bin/postgres -D ${dataDir}`)).toBe(false);
  expect(works(`vi ${dataDir}/postgresql.conf`)).toBe(false);
  expect(works('postgres: checkpointer ')).toBe(false);
  expect(works(`postgres: ${name}c: checkpointer `)).toBe(false);
  expect(works('')).toBe(false);
});

test('the output of ps is read line by line', () => {
  expect(parsePsOutput(`    1 /sbin/init\n 4242 postgres: ${name}: walwriter \n\nnoise\n`)).toEqual([
    { pid: 1, command: '/sbin/init' },
    { pid: 4242, command: `postgres: ${name}: walwriter ` },
  ]);
});
