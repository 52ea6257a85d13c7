import type { StandaloneConfig } from './config.ts';
import { readRemembered, writeRemembered } from './data-directory.ts';
import { awaitPort, isInUse } from './free-port.ts';
import { StartError } from './start-error.ts';

export type Ports = { port: number; simulatorPort: number };

/** The children of a killed start stop listening as soon as they notice; they have this long. */
const leftoverWaitMs = 6_000;

/**
 * The ports of the API and the simulator, fixed for this run, so that a restarted process is found where it was. The
 * simulator keeps its port from start to start where it can: a batch may be on its way there.
 * Throws StartError when the API's port cannot be had.
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
    return `Port ${port} on ${host} is already in use. Stop what listens there, or choose another: PORT=${port + 1} npm start`;
  }
  const reason = error instanceof Error ? error.message : 'unknown error';
  return `Sluice cannot listen on ${host} port ${port}: ${reason}. Choose another HOST or PORT.`;
}

async function chooseSimulatorPort(config: StandaloneConfig, waitMs: number, taken: number): Promise<number> {
  const { dataDir, SLUICE_SIMULATOR_PORT: given } = config;
  const loopback = '127.0.0.1';
  if (given !== undefined) {
    return await awaitPort(given, loopback, waitMs).catch((error: unknown) => {
      throw new StartError(`Port ${given} (SLUICE_SIMULATOR_PORT) cannot be used by the simulator.`, { cause: error });
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
