import path from 'node:path';
import { z } from 'zod';
import { ApiConfig } from '../api/config.ts';
import { platformFields } from '../platform/config.ts';
import { readConfig as readSimulatorConfig } from '../simulator/config.ts';
import { WorkerConfig } from '../worker/config.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { parseMasterKeys } from '#libs/secrets/master-key.ts';
import { ConfigurationError, duration, readEnv, fileVariables, readFileVariables } from '#libs/kernel/read-env.ts';

/** The variables that `npm start` itself reads. The schemas of its processes check the others, which are passed on. */
export const StandaloneConfig = z.object({
  /** Absent: the embedded Postgres. */
  DATABASE_URL: platformFields.DATABASE_URL.optional(),
  SLUICE_DATABASE_DIRECT_URL: platformFields.SLUICE_DATABASE_DIRECT_URL,
  SLUICE_DATA_DIR: platformFields.SLUICE_DATA_DIR,
  SLUICE_BLOBS: platformFields.SLUICE_BLOBS,
  /** Absent: `master.key` in the data directory, generated on the first start. */
  SLUICE_MASTER_KEY: platformFields.SLUICE_MASTER_KEY.optional(),
  /** Absent: `admin.key` in the data directory, generated on the first start. */
  SLUICE_BOOTSTRAP_KEY: ApiConfig.shape.SLUICE_BOOTSTRAP_KEY,
  SLUICE_EGRESS_ALLOW: platformFields.SLUICE_EGRESS_ALLOW,
  SLUICE_LOG_LEVEL: platformFields.SLUICE_LOG_LEVEL,
  PORT: ApiConfig.shape.PORT,
  HOST: ApiConfig.shape.HOST,
  SLUICE_STOP_DEADLINE: ApiConfig.shape.SLUICE_STOP_DEADLINE,
  /**
   * There is no delay, unlike for an API that runs alone, because there is no second API process that a proxy could use
   * instead.
   */
  SLUICE_STOP_DELAY: duration('0ms', { minMs: 0, maxMs: 600_000 }),
  // Shorter than that of a worker, because the operator waits at a terminal.
  SLUICE_DRAIN: duration('20s', { minMs: 0, maxMs: 3_600_000 }).describe(
    'How long running lines can take to finish when `npm start` stops.',
  ),
  SLUICE_SIMULATOR_PORT: z.coerce
    .number()
    .int()
    .min(1)
    .max(65_535)
    .optional()
    .meta({ range: '1 to 65535', fallback: 'a free port, reused if possible' })
    .describe('Port of the simulator.'),
});

export type StandaloneConfig = z.output<typeof StandaloneConfig> & {
  /** An absolute path. */
  dataDir: string;
  /** The environment from which those of the child processes are built. */
  env: NodeJS.ProcessEnv;
};

/** Addresses and keys that are only known during a start. */
export type StartValues = {
  /** The database, unless DATABASE_URL names it. */
  databaseUrl: string;
  port: number;
  simulatorPort: number;
  masterKey: string;
  /** undefined on a later start if the key file was removed. */
  adminKey: string | undefined;
};

/**
 * The configuration of the demo: a temporary directory, a free port and an embedded database, even if the environment
 * names real ones, and few log lines.
 */
export function readDemoConfig(dataDir: string, env: NodeJS.ProcessEnv = process.env): StandaloneConfig {
  const { SLUICE_LOG_LEVEL = 'warn' } = env;
  const files = Object.fromEntries(fileVariables.map((name) => [`${name}_FILE`, '']));
  const values = Object.fromEntries(fileVariables.map((name) => [name, '']));
  const unset = { ...files, ...values, SLUICE_BOOTSTRAP_KEY: '', SLUICE_BLOBS: '' };
  const place = { SLUICE_DATA_DIR: dataDir, PORT: '0', HOST: '127.0.0.1', SLUICE_SIMULATOR_PORT: '' };
  return readConfig({ ...env, ...unset, ...place, SLUICE_LOG_LEVEL });
}

type Environment = Record<string, string>;
export type ChildEnvironments = { api: Environment; worker: Environment; simulator: Environment };

/** Throws ConfigurationError with all problems that `npm start` or one of its processes would have with the environment. */
export function readConfig(given: NodeJS.ProcessEnv = process.env): StandaloneConfig {
  const env = readFileVariables(given);
  // Set by this start itself.
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
    () => checkDirectUrl(env),
    () => parseEgressAllow(env['SLUICE_EGRESS_ALLOW'] ?? ''),
  ]);
  const config = readEnv(StandaloneConfig, env);
  return { ...config, env, dataDir: path.resolve(config.SLUICE_DATA_DIR) };
}

// The same rule as in readEnv.
const isGiven = (value: string | undefined): value is string => value !== undefined && value.trim() !== '';

function checkBootstrapKey(key: string): void {
  if (/^[\x21-\x7e]{16,512}$/.test(key)) return;
  throw new ConfigurationError('SLUICE_BOOTSTRAP_KEY must have 16 to 512 printable ASCII characters and no spaces.');
}

function checkDirectUrl(env: NodeJS.ProcessEnv): void {
  if (!isGiven(env['SLUICE_DATABASE_DIRECT_URL']) || isGiven(env['DATABASE_URL'])) return;
  throw new ConfigurationError('SLUICE_DATABASE_DIRECT_URL is set without DATABASE_URL. Set both, or neither.');
}

/** Reports all problems in one list. A variable that two processes read is listed once. */
function throwAllProblems(checks: readonly (() => unknown)[]): void {
  const problems = new Set<string>();
  for (const check of checks) {
    try {
      check();
    } catch (error) {
      if (!(error instanceof ConfigurationError)) throw error;
      for (const line of error.message.split('\n')) if (!line.endsWith('is invalid:')) problems.add(line.trim());
    }
  }
  if (problems.size === 0) return;
  throw new ConfigurationError(`The configuration is invalid:\n${[...problems].map((line) => `  ${line}`).join('\n')}`);
}

// No other variables are passed on: the shell's environment can contain secrets that a child process does not need.
const inherited = /^(?:PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|SSL_CERT_FILE|SSL_CERT_DIR|NO_COLOR|NODE_\w+)$/;
// These describe an IPC channel between Node and the parent of this process; a child must not open it.
const notInherited = /^(?:NODE_CHANNEL_\w+|NODE_UNIQUE_ID)$/;

// The first is passed only to the API. The second would move the details of /health/ready, which this start reads.
const notForChildren: ReadonlySet<string> = new Set(['SLUICE_BOOTSTRAP_KEY', 'SLUICE_OPERATIONS_PORT']);

/** The whole environment of each child process: an allow-list, Sluice's variables, and the values of this start. */
export function childEnvironments(config: StandaloneConfig, values: StartValues): ChildEnvironments {
  const given = Object.entries(config.env).filter((entry): entry is [string, string] => entry[1] !== undefined);
  const pick = (matches: (name: string) => boolean): Environment =>
    Object.fromEntries(given.filter(([name]) => matches(name)));
  const base = pick((name) => inherited.test(name) && !notInherited.test(name));
  const simulatorAddress = `127.0.0.1:${values.simulatorPort}`;
  const shared: Environment = {
    ...base,
    ...pick((name) => name.startsWith('SLUICE_') && !notForChildren.has(name)),
    // Variables of libpq (certificates, SSL mode) apply only to the operator's database, not to the embedded one.
    // The AWS SDK needs them for blobs in S3. Providers never use them: Bedrock has only the credentials of a virtual key.
    ...(config.SLUICE_BLOBS?.startsWith('s3:') === true ? pick((name) => name.startsWith('AWS_')) : {}),
    ...(config.DATABASE_URL === undefined ? {} : pick((name) => /^PG[A-Z]+$/.test(name))),
    DATABASE_URL: config.DATABASE_URL ?? values.databaseUrl,
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
    worker: { ...shared, SLUICE_DRAIN: `${config.SLUICE_DRAIN}ms` },
    simulator: {
      ...base,
      ...pick((name) => name.startsWith('SIMULATOR_')),
      LOG_LEVEL: config.SLUICE_LOG_LEVEL,
      PORT: String(values.simulatorPort),
      HOST: '127.0.0.1',
    },
  };
}

/** Child processes run in the project folder, so a relative path would refer to another folder there. */
function absoluteBlobs(blobs: string): string {
  return blobs.startsWith('file:') ? `file:${path.resolve(blobs.slice('file:'.length))}` : blobs;
}
