import { execFile } from 'node:child_process';
import path from 'node:path';
import pg from 'pg';
import { onTestFinished } from 'vitest';
import { createSimulator, type Simulator } from '#apps/simulator/server.ts';
import { eventually } from '#test/eventually.ts';
import { sdks, type Client, type Sdk } from '../../api/sdk.ts';
import { appEnvironment, projectFolder, startApp, type AppProcess } from './app-process.ts';

export const sdk = sdks[0] as Sdk;

export type Output = { code: unknown; stdout: string; stderr: string };

/** Runs a program of the project, or of the system, to its end. */
export const run = (file: string, args: readonly string[], env: Record<string, string>): Promise<Output> =>
  new Promise((resolve) => {
    execFile(file, args, { cwd: projectFolder, env: { ...process.env, ...env } }, (error, stdout, stderr) =>
      resolve({ code: error?.code ?? 0, stdout, stderr }),
    );
  });

export async function sqlOn(
  connectionString: string,
  statement: string,
  values: unknown[] = [],
): Promise<pg.QueryResult> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => {}); // the query reports the error
  await client.connect();
  try {
    return await client.query(statement, values);
  } finally {
    await client.end();
  }
}

export type Installation = {
  simulator: Simulator;
  environment: Record<string, string>;
  query: (statement: string, values?: unknown[]) => Promise<pg.QueryResult>;
  /** Starts an API and, unless it is false, a worker. Resolves with a client of the admin key when the API listens. */
  start: (options?: { worker?: boolean }) => Promise<Client>;
  kill: () => Promise<void>;
  /** Stops the API as a frozen virtual machine would, for good. Returns it. */
  freeze: () => AppProcess;
  /** A command of the command line. */
  sluice: (...args: string[]) => Promise<Output>;
  /** The folder of the blobs, and the file of one. */
  blobs: string;
  blobFile: (blob: string) => string;
};

/** An API and a worker as processes of their own over this database, which can be killed and started again, with a simulator. */
export async function prepareInstallation(
  databaseUrl: string,
  settings: Record<string, string> = {},
): Promise<Installation> {
  const simulator = createSimulator();
  const { url } = await simulator.start();
  onTestFinished(() => simulator.stop());
  const environment: Record<string, string> = {
    ...(await appEnvironment(databaseUrl)),
    SLUICE_EGRESS_ALLOW: new URL(url).host,
    SLUICE_SIMULATOR_URL: `${url}/v1`,
    ...settings,
  };
  const blobs = path.join(environment['SLUICE_DATA_DIR'] ?? '', 'blobs');
  let running: AppProcess[] = [];
  return {
    simulator,
    environment,
    blobs,
    blobFile: (blob) => path.join(blobs, blob.slice(0, 2), blob.slice(2, 4), blob),
    query: (statement, values) => sqlOn(databaseUrl, statement, values),
    sluice: (...args) => run(process.execPath, ['apps/cli/main.ts', ...args], environment),
    async start({ worker = true } = {}) {
      const api = startApp('api', environment);
      running = [api, ...(worker ? [startApp('worker', environment)] : [])];
      const [line] = await eventually(
        () => api.said('listening'),
        (lines) => lines.length > 0,
      );
      const apiKey = environment['SLUICE_BOOTSTRAP_KEY'] ?? '';
      return new sdk.OpenAI({ apiKey, baseURL: `${line?.url}/v1` });
    },
    freeze() {
      const [api] = running.splice(0, 1) as [AppProcess];
      api.signal('SIGSTOP');
      return api;
    },
    async kill() {
      for (const each of running) each.signal('SIGKILL');
      await Promise.all(running.map((each) => each.ended));
    },
  };
}
