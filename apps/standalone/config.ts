import path from 'node:path';
import { z } from 'zod';
import { ApiConfig } from '../api/config.ts';
import { platformFields } from '../platform/config.ts';
import { readConfig as readSimulatorConfig } from '../simulator/config.ts';
import { WorkerConfig } from '../worker/config.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress-allow.ts';
import { parseMasterKeys } from '#libs/access/master-key.ts';
import { ConfigurationError, duration, readEnv } from '#libs/kernel/read-env.ts';

/** What `npm start` reads itself; the variables of its processes are checked by their own schemas and passed on. */
const StandaloneConfig = z.object({
  /** Absent: the embedded Postgres. */
  DATABASE_URL: platformFields.DATABASE_URL.optional(),
  SLUICE_DATA_DIR: platformFields.SLUICE_DATA_DIR,
  SLUICE_BLOBS: platformFields.SLUICE_BLOBS,
  /** Absent: `master.key` in the data directory, made on the first start. */
  SLUICE_MASTER_KEY: platformFields.SLUICE_MASTER_KEY.optional(),
  /** Absent: `admin.key` in the data directory, made on the first start. */
  SLUICE_BOOTSTRAP_KEY: ApiConfig.shape.SLUICE_BOOTSTRAP_KEY,
  SLUICE_EGRESS_ALLOW: platformFields.SLUICE_EGRESS_ALLOW,
  SLUICE_LOG_LEVEL: platformFields.SLUICE_LOG_LEVEL,
  PORT: ApiConfig.shape.PORT,
  HOST: ApiConfig.shape.HOST,
  SLUICE_STOP_DEADLINE: ApiConfig.shape.SLUICE_STOP_DEADLINE,
  /** None, unlike an API by itself: there is no other process for a proxy to turn to. */
  SLUICE_STOP_DELAY: duration('0ms', { minMs: 0, maxMs: 600_000 }),
  SLUICE_DRAIN: WorkerConfig.shape.SLUICE_DRAIN,
  /** Absent: a free port, the same one at the next start where possible. */
  SLUICE_SIMULATOR_PORT: z.coerce.number().int().min(1).max(65_535).optional(),
});

export type StandaloneConfig = z.output<typeof StandaloneConfig> & {
  /** Absolute. */
  dataDir: string;
  /** The environment that the children's is made from. */
  env: NodeJS.ProcessEnv;
};

/** What only a start can tell: where things are and with which keys. */
export type StartValues = {
  databaseUrl: string;
  port: number;
  simulatorPort: number;
  masterKey: string;
  /** Undefined on a later start whose key file was removed. */
  adminKey: string | undefined;
};

/**
 * The configuration of a demonstration: on a scratch directory, a free port and an embedded database, whatever the
 * environment says of real ones, and with little in its logs.
 */
export function readDemoConfig(dataDir: string, env: NodeJS.ProcessEnv = process.env): StandaloneConfig {
  const { SLUICE_LOG_LEVEL = 'warn' } = env;
  const aside = { DATABASE_URL: '', SLUICE_MASTER_KEY: '', SLUICE_BOOTSTRAP_KEY: '', SLUICE_BLOBS: '' };
  const place = { SLUICE_DATA_DIR: dataDir, PORT: '0', HOST: '127.0.0.1', SLUICE_SIMULATOR_PORT: '' };
  return readConfig({ ...env, ...aside, ...place, SLUICE_LOG_LEVEL });
}

type Environment = Record<string, string>;
export type ChildEnvironments = { api: Environment; worker: Environment; simulator: Environment };

/** Throws ConfigurationError, naming everything that `npm start` or one of its processes would refuse. */
export function readConfig(env: NodeJS.ProcessEnv = process.env): StandaloneConfig {
  // What this start will decide itself.
  const decided = {
    DATABASE_URL: 'postgres://127.0.0.1/sluice',
    SLUICE_MASTER_KEY: 'unused',
    SLUICE_SIMULATOR_URL: '',
  };
  const simulator = Object.fromEntries(Object.entries(env).filter(([name]) => name.startsWith('SIMULATOR_')));
  throwAllProblems([
    () => readEnv(StandaloneConfig, env),
    () => readEnv(ApiConfig, { ...env, ...decided }),
    () => readEnv(WorkerConfig, { ...env, ...decided }),
    () => readSimulatorConfig(simulator),
    () => isGiven(env['SLUICE_MASTER_KEY']) && parseMasterKeys(env['SLUICE_MASTER_KEY']),
    () => isGiven(env['SLUICE_BOOTSTRAP_KEY']) && checkBootstrapKey(env['SLUICE_BOOTSTRAP_KEY']),
    () => parseEgressAllow(env['SLUICE_EGRESS_ALLOW'] ?? ''),
  ]);
  const config = readEnv(StandaloneConfig, env);
  return { ...config, env, dataDir: path.resolve(config.SLUICE_DATA_DIR) };
}

// As readEnv sees it.
const isGiven = (value: string | undefined): value is string => value !== undefined && value.trim() !== '';

function checkBootstrapKey(key: string): void {
  if (/^[\x21-\x7e]{16,512}$/.test(key)) return;
  throw new ConfigurationError('SLUICE_BOOTSTRAP_KEY must have 16 to 512 printable ASCII characters without spaces.');
}

/** One start, one list: a variable that two processes read is told once. */
function throwAllProblems(checks: readonly (() => unknown)[]): void {
  const problems = new Set<string>();
  for (const check of checks) {
    try {
      check();
    } catch (error) {
      if (!(error instanceof ConfigurationError)) throw error;
      for (const line of error.message.split('\n')) if (!line.endsWith('not usable:')) problems.add(line.trim());
    }
  }
  if (problems.size === 0) return;
  throw new ConfigurationError(
    `The configuration is not usable:\n${[...problems].map((line) => `  ${line}`).join('\n')}`,
  );
}

// Everything else stays here: a child must not inherit secrets of the shell that it has no use for.
const inherited = /^(?:PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|SSL_CERT_FILE|SSL_CERT_DIR|NO_COLOR|NODE_\w+)$/;
// Node's own hand-over to a child of somebody else's (an IPC channel, a file descriptor) is not for ours.
const notInherited = /^(?:NODE_CHANNEL_\w+|NODE_UNIQUE_ID)$/;

// The first is for the API alone; the start itself reads the readiness of the second's port, and prints the usual one.
const notForChildren: ReadonlySet<string> = new Set(['SLUICE_BOOTSTRAP_KEY', 'SLUICE_OPERATIONS_PORT']);

/** The whole environment of each child: an allow-list, Sluice's own variables, and what this start decided. */
export function childEnvironments(config: StandaloneConfig, values: StartValues): ChildEnvironments {
  const given = Object.entries(config.env).filter((entry): entry is [string, string] => entry[1] !== undefined);
  const pick = (matches: (name: string) => boolean): Environment =>
    Object.fromEntries(given.filter(([name]) => matches(name)));
  const base = pick((name) => inherited.test(name) && !notInherited.test(name));
  const simulatorAddress = `127.0.0.1:${values.simulatorPort}`;
  const shared: Environment = {
    ...base,
    ...pick((name) => name.startsWith('SLUICE_') && !notForChildren.has(name)),
    // libpq's variables (certificates, SSL mode) belong to a database of one's own.
    ...(config.DATABASE_URL === undefined ? {} : pick((name) => /^PG[A-Z]+$/.test(name))),
    DATABASE_URL: values.databaseUrl,
    HOST: config.HOST,
    SLUICE_DATA_DIR: config.dataDir,
    ...(config.SLUICE_BLOBS === undefined ? {} : { SLUICE_BLOBS: absoluteBlobs(config.SLUICE_BLOBS) }),
    SLUICE_MASTER_KEY: values.masterKey,
    SLUICE_EGRESS_ALLOW: [config.SLUICE_EGRESS_ALLOW, simulatorAddress].filter((part) => part !== '').join(','),
  };
  return {
    api: {
      ...shared,
      PORT: String(values.port),
      SLUICE_STOP_DELAY: `${config.SLUICE_STOP_DELAY}ms`,
      SLUICE_SIMULATOR_URL: `http://${simulatorAddress}/v1`,
      ...(values.adminKey === undefined ? {} : { SLUICE_BOOTSTRAP_KEY: values.adminKey }),
    },
    worker: shared,
    simulator: {
      ...base,
      ...pick((name) => name.startsWith('SIMULATOR_')),
      LOG_LEVEL: config.SLUICE_LOG_LEVEL,
      PORT: String(values.simulatorPort),
      HOST: '127.0.0.1',
    },
  };
}

/** The children's working directory is the project's, whatever ours is. */
function absoluteBlobs(blobs: string): string {
  return blobs.startsWith('file:') ? `file:${path.resolve(blobs.slice('file:'.length))}` : blobs;
}
