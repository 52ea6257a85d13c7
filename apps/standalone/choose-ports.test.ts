import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { choosePorts } from './choose-ports.ts';
import { readConfig } from './config.ts';
import { StartError } from './start-error.ts';

async function setUp(env: Record<string, string> = {}) {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'sluice-ports-'));
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }));
  return readConfig({ SLUICE_DATA_DIR: dataDir, PORT: '0', ...env });
}

async function occupy(port: number) {
  const server = createServer().listen(port, '127.0.0.1');
  await new Promise((resolve, reject) => server.once('listening', () => resolve(undefined)).once('error', reject));
  const close = () => new Promise<void>((resolve) => server.close(() => resolve()));
  onTestFinished(close);
  return { port: (server.address() as AddressInfo).port, close };
}

test('the simulator keeps its port from start to start, and moves when somebody else has it', async () => {
  const config = await setUp();
  const first = await choosePorts(config, false);
  expect((await choosePorts(config, false)).simulatorPort).toBe(first.simulatorPort);
  const { close } = await occupy(first.simulatorPort);
  const moved = await choosePorts(config, false);
  expect(moved.simulatorPort).not.toBe(first.simulatorPort);
  await close();
  expect((await choosePorts(config, false)).simulatorPort).toBe(moved.simulatorPort);
});

test('a port in use is refused with what to do', async () => {
  const { port } = await occupy(0);
  const config = await setUp({ PORT: String(port) });
  await expect(choosePorts(config, false)).rejects.toThrow(StartError);
  await expect(choosePorts(config, false)).rejects.toThrow(new RegExp(`^Port ${port} .* PORT=${port + 1} npm start$`));
});

test('after a killed start it waits for the port that an orphan is just giving up', async () => {
  const { port, close } = await occupy(0);
  const config = await setUp({ PORT: String(port) });
  const choosing = choosePorts(config, true);
  await close();
  expect((await choosing).port).toBe(port);
});

test('a host that is not of this machine is refused by name', async () => {
  const config = await setUp({ HOST: '192.0.2.1' });
  await expect(choosePorts(config, false)).rejects.toThrow(/cannot listen on 192\.0\.2\.1/);
});
