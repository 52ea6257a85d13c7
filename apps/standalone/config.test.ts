import { expect, test } from 'vitest';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { childEnvironments, readConfig, readDemoConfig } from './config.ts';

const values = {
  databaseUrl: 'postgres://sluice:secret@127.0.0.1:5432/sluice',
  port: 8787,
  simulatorPort: 4321,
  masterKey: 'the master key',
  adminKey: 'the admin key',
};
const environmentsOf = (env: Record<string, string>) => childEnvironments(readConfig(env), values);

test('each process gets its place, and the simulator no secret', () => {
  const { api, worker, simulator } = environmentsOf({ PATH: '/bin', SLUICE_DATA_DIR: '/var/sluice' });
  expect(worker).toEqual({
    PATH: '/bin',
    DATABASE_URL: values.databaseUrl,
    HOST: '127.0.0.1',
    SLUICE_DATA_DIR: '/var/sluice',
    SLUICE_DRAIN: '20000ms',
    SLUICE_MASTER_KEY: values.masterKey,
    SLUICE_EGRESS_ALLOW: '127.0.0.1:4321',
  });
  const { SLUICE_DRAIN: _drain, ...shared } = worker;
  expect(api).toEqual({
    ...shared,
    PORT: '8787',
    SLUICE_STOP_DELAY: '0ms',
    SLUICE_BOOTSTRAP_KEY: values.adminKey,
    SLUICE_SIMULATOR_URL: 'http://127.0.0.1:4321/v1',
  });
  expect(simulator).toEqual({ PATH: '/bin', LOG_LEVEL: 'info', PORT: '4321', HOST: '127.0.0.1' });
});

test("the shell's other variables stay where they are", () => {
  const env = { AWS_SECRET_ACCESS_KEY: 'x', OPENAI_API_KEY: 'x', NODE_CHANNEL_FD: '3', PGPASSWORD: 'x', EDITOR: 'vi' };
  const { api, worker, simulator } = environmentsOf({ ...env, NODE_OPTIONS: '--no-warnings', LC_ALL: 'C', TZ: 'UTC' });
  for (const child of [api, worker, simulator]) {
    expect(child).toMatchObject({ NODE_OPTIONS: '--no-warnings', LC_ALL: 'C', TZ: 'UTC' });
    expect(Object.keys(env).filter((name) => name in child)).toEqual([]);
  }
});

test('AWS credentials are passed to the API and the worker only for blobs in S3', () => {
  const env = { AWS_ACCESS_KEY_ID: 'id', AWS_WEB_IDENTITY_TOKEN_FILE: '/token' };
  const { api, worker, simulator } = environmentsOf({ ...env, SLUICE_BLOBS: 's3://bucket/prefix' });
  expect(api).toMatchObject({ ...env, SLUICE_BLOBS: 's3://bucket/prefix' });
  expect(worker).toMatchObject(env);
  expect(Object.keys(simulator)).not.toContain('AWS_ACCESS_KEY_ID');
});

test("libpq's variables go with a database of one's own", () => {
  const { worker } = environmentsOf({ DATABASE_URL: 'postgres://db.example/sluice', PGSSLMODE: 'verify-full' });
  expect(worker['PGSSLMODE']).toBe('verify-full');
});

test('both addresses of a database behind a pooler are passed on', () => {
  const addresses = { DATABASE_URL: 'postgres://pooler/sluice', SLUICE_DATABASE_DIRECT_URL: 'postgres://db/sluice' };
  const { api, worker, simulator } = environmentsOf(addresses);
  for (const child of [api, worker]) expect(child).toMatchObject(addresses);
  expect(Object.keys(simulator)).not.toContain('SLUICE_DATABASE_DIRECT_URL');
});

test('the operator keeps his egress exceptions, and relative folders mean the same to the children', () => {
  const { api } = environmentsOf({
    SLUICE_EGRESS_ALLOW: 'vllm:8000',
    SLUICE_BLOBS: 'file:blobs',
    SLUICE_DATA_DIR: 'd',
  });
  expect(api).toMatchObject({
    SLUICE_EGRESS_ALLOW: 'vllm:8000,127.0.0.1:4321',
    SLUICE_BLOBS: `file:${process.cwd()}/blobs`,
    SLUICE_DATA_DIR: `${process.cwd()}/d`,
  });
});

test('what one of the processes would refuse is refused before anything starts', () => {
  const wrong = [
    { PORT: '70000' },
    { SLUICE_CALLS_MAX: '0' },
    { SLUICE_BODY_MAX: 'much' },
    { SIMULATOR_LATENCY: 'long' },
    { SLUICE_MASTER_KEY: 'short' },
    { SLUICE_BOOTSTRAP_KEY: 'has spaces in its text' },
    { SLUICE_EGRESS_ALLOW: 'everything' },
    { DATABASE_URL: 'mysql://db' },
    { SLUICE_DATABASE_DIRECT_URL: 'postgres://db/sluice' },
  ];
  for (const env of wrong) expect(() => readConfig(env)).toThrow(ConfigurationError);
});

test('all problems are reported at once, each of them once, whichever process would have them', () => {
  const env = {
    PORT: 'banana',
    SLUICE_BODY_MAX: '5',
    SLUICE_DRAIN: 'never',
    SLUICE_CALLS_MAX: '0',
    SIMULATOR_LATENCY: 'slow',
    SLUICE_MASTER_KEY: 'short',
    SLUICE_BOOTSTRAP_KEY: 'a b',
    SLUICE_EGRESS_ALLOW: 'nope nope',
  };
  let message = '';
  try {
    readConfig(env);
  } catch (error) {
    message = (error as Error).message;
  }
  for (const name of Object.keys(env)) expect(message.match(new RegExp(name, 'g'))).toHaveLength(1);
});

test('a demo does not touch the real database, keys, files and port', () => {
  const real = {
    DATABASE_URL: 'postgres://db/real',
    DATABASE_URL_FILE: '/real',
    SLUICE_DATABASE_DIRECT_URL: 'postgres://db/real',
    SLUICE_MASTER_KEY: 'real',
    SLUICE_MASTER_KEY_FILE: '/real',
    SLUICE_BOOTSTRAP_KEY: 'real',
    SLUICE_BLOBS: 'file:/real',
    SLUICE_DATA_DIR: '/real',
    PORT: '8787',
    SLUICE_CALLS_MAX: '7',
  };
  const config = readDemoConfig('/scratch', real);
  expect(config).toMatchObject({ dataDir: '/scratch', PORT: 0 });
  expect(config.DATABASE_URL).toBeUndefined();
  const { worker } = childEnvironments(config, { ...values, adminKey: undefined });
  expect(JSON.stringify(worker)).not.toContain('real');
  expect(worker['SLUICE_CALLS_MAX']).toBe('7');
});
