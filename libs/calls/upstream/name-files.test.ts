import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { createNameFiles, type NameFiles } from './name-files.ts';

const folders: string[] = [];
afterEach(async () => {
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true });
});

async function start(texts: { hosts?: string; resolvConf?: string }) {
  const folder = await mkdtemp(path.join(tmpdir(), 'name-files-'));
  folders.push(folder);
  const paths = { hosts: path.join(folder, 'hosts'), resolvConf: path.join(folder, 'resolv.conf') };
  const write = async (changed: typeof texts): Promise<void> => {
    if (changed.hosts !== undefined) await writeFile(paths.hosts, changed.hosts);
    if (changed.resolvConf !== undefined) await writeFile(paths.resolvConf, changed.resolvConf);
  };
  await write(texts);
  let now = 0;
  const files: NameFiles = createNameFiles(paths, () => now);
  return { files, write, advance: (ms: number) => void (now += ms) };
}

test('the hosts file gives a name all its addresses, whatever else is in it', async () => {
  const { files } = await start({
    hosts:
      '127.0.0.1\tlocalhost\n10.0.0.7  VLLM.internal vllm # model server\n\n# 10.0.0.8 vllm\nfd00::7 vllm\nno-address x\n',
  });
  expect(files.addressesOf('vllm')).toEqual([
    { address: '10.0.0.7', family: 4 },
    { address: 'fd00::7', family: 6 },
  ]);
  expect(files.addressesOf('vllm.internal.')).toEqual([{ address: '10.0.0.7', family: 4 }]);
  expect(files.addressesOf('x')).toBeUndefined();
});

test.each<[string, string, string[]]>([
  ['nothing is said', 'vllm', ['vllm']],
  ['search a.b c', 'vllm', ['vllm.a.b', 'vllm.c', 'vllm']],
  ['search a.b c', 'api.example', ['api.example', 'api.example.a.b', 'api.example.c']],
  ['search a.b\noptions ndots:5 timeout:1', 'api.example', ['api.example.a.b', 'api.example']],
  ['search a.b\noptions ndots:0', 'vllm', ['vllm', 'vllm.a.b']],
  ['search a.b', 'vllm.', ['vllm']],
  ['search a.b\ndomain c. ; the last one counts', 'vllm', ['vllm.c', 'vllm']],
  ['# search a.b\nsearch .', 'vllm', ['vllm']],
])('with "%s" in resolv.conf %s stands for %j', async (resolvConf, name, candidates) => {
  const { files } = await start({ resolvConf });
  expect(files.candidatesOf(name)).toEqual(candidates);
});

test('files that change are read again within a second, and files that do not exist are empty', async () => {
  const { files, write, advance } = await start({});
  expect(files.addressesOf('vllm')).toBeUndefined();
  expect(files.candidatesOf('vllm')).toEqual(['vllm']);
  const before = files.version();
  await write({ hosts: '10.0.0.7 vllm\n', resolvConf: 'search a.b\n' });
  expect(files.addressesOf('vllm')).toBeUndefined();
  advance(1_000);
  expect(files.addressesOf('vllm')).toEqual([{ address: '10.0.0.7', family: 4 }]);
  expect(files.candidatesOf('vllm')).toEqual(['vllm.a.b', 'vllm']);
  expect(files.version()).toBeGreaterThan(before);
});
