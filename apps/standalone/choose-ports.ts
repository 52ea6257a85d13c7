import { probePort } from '../platform/processes/probe-port.ts';
import type { StandaloneConfig } from './config.ts';
import { readRemembered, writeRemembered } from './files/data-directory.ts';
import { StartError } from './start-error.ts';
import { sleep } from '#libs/kernel/sleep.ts';

export type Ports = { port: number; simulatorPort: number };

/** How long the child processes of a killed start can take to notice and to stop listening. */
const leftoverWaitMs = 6_000;

/**
 * Chooses the ports of the API and the simulator for this run; a restarted process gets the same port. If possible, the
 * simulator also has the port of the last run, because a batch could still be calling it there. Throws StartError if the
 * port of the API is not available.
 */
export async function choosePorts(config: StandaloneConfig, wasKilled: boolean): Promise<Ports> {
  const waitMs = wasKilled ? leftoverWaitMs : 0;
  const port = await awaitPort(config.PORT, config.HOST, waitMs).catch((error: unknown) => {
    throw new StartError(refusal(config, error), { cause: error });
  });
  return { port, simulatorPort: await chooseSimulatorPort(config, waitMs, port) };
}

function refusal({ PORT: port, HOST: host }: StandaloneConfig, error: unknown): string {
  if (isInUse(error)) {
    return `Port ${port} on ${host} is already in use. Stop the program that uses it, or choose another port: PORT=${port + 1} npm start`;
  }
  const reason = error instanceof Error ? error.message : 'unknown error';
  return `Sluice cannot listen on ${host} port ${port}: ${reason}. Choose another HOST or PORT.`;
}

async function chooseSimulatorPort(config: StandaloneConfig, waitMs: number, taken: number): Promise<number> {
  const { dataDir, SLUICE_SIMULATOR_PORT: given } = config;
  const loopback = '127.0.0.1';
  if (given !== undefined) {
    return await awaitPort(given, loopback, waitMs).catch((error: unknown) => {
      throw new StartError(`The simulator cannot listen on port ${given}. Choose another SLUICE_SIMULATOR_PORT.`, {
        cause: error,
      });
    });
  }
  const { simulatorPort: known } = await readRemembered(dataDir);
  if (known !== undefined && known !== taken) {
    const again = await awaitPort(known, loopback, waitMs).catch(() => undefined);
    if (again !== undefined) return again;
  }
  const simulatorPort = await awaitPort(0, loopback, 0);
  await writeRemembered(dataDir, { simulatorPort });
  return simulatorPort;
}

/** Like `probePort`, but waits up to `waitMs` for a port to become free. */
async function awaitPort(port: number, host: string, waitMs: number): Promise<number> {
  const deadline = performance.now() + waitMs;
  for (;;) {
    try {
      return await probePort(port, host);
    } catch (error) {
      if (!isInUse(error) || performance.now() >= deadline) throw error;
      await sleep(100);
    }
  }
}

const isInUse = (error: unknown): boolean => error instanceof Error && 'code' in error && error.code === 'EADDRINUSE';
