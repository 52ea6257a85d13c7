import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { ApiConfig } from '#apps/api/config.ts';
import { describeUnknownVariables } from '#apps/known-variables.ts';
import { WorkerConfig } from '#apps/worker/config.ts';

// The files of Docker Compose, as far as they can be checked without Docker; with Caddy, what it makes of its file.

const root = path.resolve(import.meta.dirname, '..');
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');

type Service = {
  image?: string;
  build?: string;
  command?: string[];
  entrypoint?: string[];
  environment?: Record<string, string>;
  ports?: string[];
  volumes?: string[];
  networks: string[];
  depends_on?: string[] | Record<string, { condition: string }>;
  healthcheck?: { test: string[]; interval: string };
  cap_drop: string[];
  cap_add?: string[];
  security_opt: string[];
  read_only: boolean;
  restart: string;
  mem_limit?: string;
  stop_grace_period?: string;
  logging: { options: Record<string, string> };
};
type Compose = {
  services: Record<string, Service>;
  networks: Record<string, { internal?: boolean }>;
  volumes: Record<string, object>;
};

const compose = (file: string): Compose => parse(read(file), { merge: true }) as Compose;
const caddyfile = read('ops/compose/Caddyfile');
const forOthers = compose('ops/compose/docker-compose.yml');

/** The variables of .env that a text names, and those of them without which compose does not start. */
const variablesIn = (text: string): { all: Set<string>; required: Set<string> } => ({
  all: new Set([...text.matchAll(/\$\{([A-Z_0-9]+)/g)].map(([, name = '']) => name)),
  required: new Set([...text.matchAll(/\$\{([A-Z_0-9]+):\?/g)].map(([, name = '']) => name)),
});
const toMs = (text: string): number => {
  const [, amount, unit] = /^(\d+)(ms|s|m|h)$/.exec(text) ?? [];
  return Number(amount) * { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 }[unit as 'ms' | 's' | 'm' | 'h'];
};
test('the proxy tells clients to use TLS only, also in answers that follow an error', () => {
  expect(caddyfile.match(/header Strict-Transport-Security "max-age=\d{8,}"/g)).toHaveLength(1);
  expect(caddyfile.match(/^\t+import hsts$/gm)).toHaveLength(2);
});

/** The time or amount of a directive of the Caddyfile; it must be the same wherever it stands. */
const caddySetting = (name: string): string => {
  const values = [...caddyfile.matchAll(new RegExp(`^\\s*${name} (\\S+)$`, 'gm'))].map(([, value = '']) => value);
  if (new Set(values).size !== 1) throw new Error(`the Caddyfile has ${values.length} values of ${name}`);
  return values[0] ?? '';
};
const minimal = {
  DATABASE_URL: 'postgres://sluice:x@postgres:5432/sluice',
  SLUICE_MASTER_KEY: Buffer.from(Array.from({ length: 32 }, (_value, index) => index)).toString('base64'),
};

describe.each([
  ['docker-compose.yml', '.env.example'],
  ['ops/compose/docker-compose.yml', 'ops/compose/.env.example'],
])('%s', (file, exampleFile) => {
  const { services, networks, volumes } = compose(file);

  test('asks for the variables that its example has, and gives processes only such as they know', () => {
    const { all, required } = variablesIn(read(file));
    const example = read(exampleFile);
    const given = [...example.matchAll(/^([A-Z_0-9]+)=/gm)].map(([, name = '']) => name);
    const offered = [...example.matchAll(/^# ([A-Z_0-9]+)=/gm)].map(([, name = '']) => name);
    expect(new Set(given)).toEqual(required);
    expect([...given, ...offered].filter((name) => !all.has(name))).toEqual([]);
    const own = Object.values(services).filter(
      ({ image, build }) => build !== undefined || image?.includes('SLUICE_IMAGE'),
    );
    expect(own.length).toBeGreaterThan(2);
    const names = own.flatMap(({ environment = {} }) => Object.keys(environment));
    expect(describeUnknownVariables(names.filter((name) => name.startsWith('SLUICE_')))).toEqual([]);
    const programs = own.flatMap(({ command = [] }) => command.filter((word) => word.endsWith('.ts')));
    expect(programs.filter((program) => !existsSync(path.join(root, program)))).toEqual([]);
  });

  test('names only networks, volumes and services that it has, and no published service is near the database', () => {
    const used = Object.values(services);
    expect(new Set(used.flatMap((service) => service.networks))).toEqual(new Set(Object.keys(networks)));
    const named = used.flatMap((service) => service.volumes ?? []).map((volume) => volume.split(':')[0] ?? '');
    expect(new Set(named.filter((name) => !name.startsWith('.')))).toEqual(new Set(Object.keys(volumes)));
    const needed = used.flatMap(({ depends_on: on = [] }) => (Array.isArray(on) ? on : Object.keys(on)));
    expect(needed.filter((name) => !(name in services))).toEqual([]);
    expect(networks['database']).toEqual({ internal: true });
  });

  test.each(Object.entries(services))(
    'the service %s is bounded, has few rights, is checked and comes back',
    (_name, service) => {
      expect(service).toMatchObject({
        read_only: true,
        cap_drop: ['ALL'],
        security_opt: ['no-new-privileges:true'],
        restart: expect.stringMatching(/^(unless-stopped|on-failure)$/),
        logging: { options: { 'max-size': '20m', 'max-file': '5' } },
      });
      // Of the others, Postgres has settings for its memory, and the last one ends.
      const isPostgres = service.image?.startsWith('postgres:') ?? false;
      expect(service.mem_limit !== undefined || isPostgres).toBe(true);
      // The image of Sluice has a check of its own, for APIs and workers.
      const hasImageCheck =
        !isPostgres && !/simulator/.test(service.command?.at(-1) ?? '') && service.ports?.length !== 3;
      expect(service.healthcheck !== undefined || service.entrypoint !== undefined || hasImageCheck).toBe(true);
    },
  );

  test('an API can have several processes, and memory for each', () => {
    const apis = Object.entries(services).filter(([name]) => name.startsWith('api'));
    for (const [, { environment, mem_limit: memory }] of apis) {
      expect(environment).toMatchObject({ SLUICE_API_PROCESSES: '${SLUICE_API_PROCESSES:-1}' });
      expect(memory).toBe('${SLUICE_API_MEMORY:-1g}');
    }
    expect(apis.length).toBeGreaterThan(0);
  });

  test('a process has the time to stop that it takes at most', () => {
    const { SLUICE_STOP_DELAY: delay, SLUICE_STOP_DEADLINE: deadline } = ApiConfig.parse(minimal);
    const { SLUICE_DRAIN: drain } = WorkerConfig.parse(minimal);
    const graces = (name: RegExp): number[] =>
      Object.keys(services)
        .filter((service) => name.test(service))
        .map((service) => toMs(services[service]?.stop_grace_period ?? '10s'));
    expect(Math.min(...graces(/^api/))).toBeGreaterThanOrEqual(delay + deadline + 10_000);
    expect(Math.min(...graces(/^worker/))).toBeGreaterThanOrEqual(drain + 10_000);
  });
});

test('both files have the same database', () => {
  const { services } = compose('docker-compose.yml');
  for (const name of ['postgres', 'prepare-database']) expect(forOthers.services[name]).toEqual(services[name]);
});

test('only the proxy is published, before two APIs that differ in nothing, and it is not near the database', () => {
  const { proxy, 'api-1': first, 'api-2': second, ...others } = forOthers.services;
  expect(first).toEqual(second);
  expect([first, ...Object.values(others)].filter((service) => service?.ports !== undefined)).toEqual([]);
  expect(proxy?.ports).toEqual(['80:80', '443:443', '443:443/udp']);
  expect(proxy?.networks).toEqual(['public', 'edge']);
  expect(first?.networks).toContain('edge');
  expect(forOthers.networks['edge']).toEqual({ internal: true });
  for (const { image } of Object.values(forOthers.services)) expect(image).toMatch(/SLUICE_IMAGE|:\d/);
  for (const name of ['api-1', 'api-2']) expect(caddyfile).toContain(`:${name}:8787}`);
});

test('the proxy waits longer, takes larger bodies and keeps connections for a shorter time than the API', () => {
  const api = ApiConfig.parse(minimal);
  for (const name of ['read_timeout', 'response_header_timeout'])
    expect(toMs(caddySetting(name))).toBeGreaterThan(api.SLUICE_TOTAL_TIMEOUT);
  const [, mebibytes] = /^(\d+)MiB$/.exec(caddySetting('max_size')) ?? [];
  expect(Number(mebibytes) * 1_048_576).toBeGreaterThan(api.SLUICE_UPLOAD_MAX);
  const [, apiKeepsMs = ''] = /keepAliveTimeoutMs: ([\d_]+)/.exec(read('libs/http/http-server.ts')) ?? [];
  expect(toMs(caddySetting('keepalive'))).toBeLessThan(Number(apiKeepsMs.replaceAll('_', '')));
  const noticedMs =
    (toMs(caddySetting('health_interval')) + toMs(caddySetting('health_timeout'))) *
    Number(caddySetting('health_fails'));
  expect(noticedMs).toBeLessThan(api.SLUICE_STOP_DELAY);
});

const hasCaddy = (() => {
  try {
    execFileSync('caddy', ['version'], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
})();

test.skipIf(!hasCaddy)('Caddy takes its file', () => {
  const args = ['validate', '--config', path.join(root, 'ops/compose/Caddyfile'), '--adapter', 'caddyfile'];
  const env = { ...process.env, SLUICE_DOMAIN: 'llm.example.com' };
  expect(() => execFileSync('caddy', args, { env, stdio: 'ignore' })).not.toThrow();
});
