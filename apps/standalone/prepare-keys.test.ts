import { randomBytes } from 'node:crypto';
import { statSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { isWellFormedGatewayKey } from '#libs/identity/gateway-key.ts';
import { readConfig } from './config.ts';
import { prepareKeys } from './prepare-keys.ts';
import { StartError } from './start-error.ts';

const nothing = { hasWorkspace: false, hasMasterKey: false };
const everything = { hasWorkspace: true, hasMasterKey: true };

async function setUp(env: Record<string, string> = {}) {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'sluice-keys-'));
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }));
  return { dataDir, config: readConfig({ SLUICE_DATA_DIR: dataDir, ...env }) };
}

test('a first start makes both keys, in files that only their owner can read', async () => {
  const { dataDir, config } = await setUp();
  const { masterKey, adminKey } = await prepareKeys(config, nothing);
  expect(Buffer.from(masterKey.reveal(), 'base64')).toHaveLength(32);
  expect(isWellFormedGatewayKey(adminKey?.value.reveal() ?? '')).toBe(true);
  expect(await readFile(path.join(dataDir, 'master.key'), 'utf8')).toBe(`${masterKey.reveal()}\n`);
  expect(await readFile(path.join(dataDir, 'admin.key'), 'utf8')).toBe(`${adminKey?.value.reveal()}\n`);
  expect(await readdir(dataDir)).toHaveLength(2);
  for (const name of ['master.key', 'admin.key']) expect(statSync(path.join(dataDir, name)).mode & 0o777).toBe(0o600);
});

test('a start after one that died before it could use its keys takes the same ones', async () => {
  const { config } = await setUp();
  const first = await prepareKeys(config, nothing);
  const second = await prepareKeys(config, nothing);
  expect(second.masterKey.reveal()).toBe(first.masterKey.reveal());
  expect(second.adminKey?.value.reveal()).toBe(first.adminKey?.value.reveal());
});

test('an admin key that was taken away is not replaced where somebody has keys', async () => {
  const { dataDir, config } = await setUp();
  await prepareKeys(config, nothing);
  await rm(path.join(dataDir, 'admin.key'));
  expect((await prepareKeys(config, everything)).adminKey).toBeUndefined();
  expect(await readdir(dataDir)).toEqual(['master.key']);
});

test('a lost master key is not replaced where secrets need it', async () => {
  const { config } = await setUp();
  await expect(prepareKeys(config, everything)).rejects.toThrow(StartError);
  await expect(prepareKeys(config, everything)).rejects.toThrow(/master\.key is missing/);
});

test('a key file that is empty or not a key stops the start', async () => {
  const { dataDir, config } = await setUp();
  await writeFile(path.join(dataDir, 'master.key'), '\n');
  await expect(prepareKeys(config, nothing)).rejects.toThrow(/is empty/);
  await writeFile(path.join(dataDir, 'master.key'), 'half of a key');
  await expect(prepareKeys(config, nothing)).rejects.toThrow(/SLUICE_MASTER_KEY must be 32 bytes/);
});

test('keys of the environment are used and not kept', async () => {
  const master = randomBytes(32).toString('base64');
  const { dataDir, config } = await setUp({
    SLUICE_MASTER_KEY: master,
    SLUICE_BOOTSTRAP_KEY: 'chosen-by-the-operator',
  });
  const { masterKey, adminKey } = await prepareKeys(config, nothing);
  expect(masterKey.reveal()).toBe(master);
  expect(adminKey).toMatchObject({ file: undefined });
  expect(adminKey?.value.reveal()).toBe('chosen-by-the-operator');
  expect(await readdir(dataDir)).toEqual([]);
});
