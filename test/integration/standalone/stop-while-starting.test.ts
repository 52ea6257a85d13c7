import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { removeEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { makeDatabaseFolder } from '#test/database-folder.ts';
import { createRandom } from '../../faults/random.ts';
import { pidsWith } from '../database/embedded-harness.ts';
import { environmentOf, launch, npmStart, standaloneEnvironment, type Ended } from './npm-start.ts';

/** Which moments are hit, up to the scheduler: another seed, other delays. */
const random = createRandom(4711);
/** Inherited by every process of `npm start` but the database's, so that what is left of them is found. */
const mark = { name: 'LC_SLUICE_TEST', value: `stop-while-starting-${process.pid}` };

let folder = '';
let dataDir = '';
let env: Record<string, string> = {};

/** `logged`: what a process has written to its log in this start. */
type Moment = { name: string; isReached: (logged: (app: string) => string) => boolean };

const exists = (name: string) => () => existsSync(path.join(dataDir, name));
const moments: Record<string, Moment> = {
  begun: { name: 'as it begins', isReached: () => true },
  creating: { name: 'while the database is created', isReached: exists('postgres/cluster.json') },
  starting: { name: 'while the database starts', isReached: exists('postgres/data/postmaster.pid') },
  launching: { name: 'while its processes are launched', isReached: exists('runtime.json') },
  simulator: {
    name: 'while API and worker load',
    isReached: (logged) => logged('simulator').includes('"simulator listening"'),
  },
  migrating: { name: 'while the API migrates', isReached: (logged) => logged('api').includes('"starting"') },
  migrated: {
    name: 'after the migration',
    isReached: (logged) => /"database migrated"|"listening"/.test(logged('api') + logged('worker')),
  },
  listening: { name: 'while the worker starts', isReached: (logged) => logged('api').includes('"listening"') },
};

/** A migration under way is ended by ending its session, which server and client tell. */
const migrationEnded = /terminating connection due to administrator command|session lost: .*sluice-migrate/;

const logFile = (app: string): string => path.join(dataDir, 'logs', `${app}.log`);
const sizeOf = (file: string): number => (existsSync(file) ? statSync(file).size : 0);

/** The processes of this test's `npm start` that are still there. */
function leftovers(): string[] {
  const isMarked = (pid: string): boolean => {
    try {
      return environmentOf(Number(pid)).get(mark.name) === mark.value;
    } catch {
      return false; // it ended meanwhile, or is somebody else's
    }
  };
  const marked = readdirSync('/proc').filter((name) => /^\d+$/.test(name) && isMarked(name));
  return [...marked, ...pidsWith(dataDir).map(String)].map((pid) => {
    return `${pid} ${readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')}`;
  });
}

/** Starts it, sends SIGTERM so long after the moment, and expects that everything ends in order. */
async function stopAt({ isReached }: Moment, delayMs: number): Promise<void> {
  const from = new Map(['api', 'worker', 'simulator'].map((app) => [app, sizeOf(logFile(app))]));
  const logged = (app: string): string =>
    existsSync(logFile(app)) ? readFileSync(logFile(app)).subarray(from.get(app)).toString() : '';
  const { child, output, ended } = launch(['apps/standalone/main.ts'], env);
  const isDue = ({ stdout }: typeof output): boolean =>
    stdout.includes('sluice ready') || (stdout.includes('starting sluice\n') && isReached(logged));
  while (!isDue(output)) {
    if (child.exitCode !== null) throw new Error(`It ended by itself:\n${output.stdout}\n${output.stderr}`);
    await sleep(2);
  }
  await sleep(delayMs);
  child.kill('SIGTERM');
  await expectOrder(ended);
}

/** All of it ended, in order, and left nothing behind. */
async function expectOrder(ended: Promise<Ended>): Promise<void> {
  const { code, stdout, stderr } = await ended;
  const problems = stderr.split('\n').filter((line) => line !== '' && !migrationEnded.test(line));
  expect({ code, problems }).toEqual({ code: 0, problems: [] });
  expect(stdout).toMatch(/stopping \(press Ctrl-C again to stop immediately\)\n(?:.*\n)*stopped\n$/);
  expect(leftovers()).toEqual([]);
  expect(existsSync(path.join(dataDir, 'runtime.json'))).toBe(false);
}

beforeAll(async () => {
  folder = await makeDatabaseFolder('sluice-stop-');
  dataDir = path.join(folder, 'data');
  env = standaloneEnvironment(dataDir, { [mark.name]: mark.value });
});

afterAll(async () => {
  for (const line of leftovers()) process.kill(Number.parseInt(line, 10), 'SIGKILL');
  await removeEmbeddedPostgres(dataDir);
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
});

const withDelays = (...names: (keyof typeof moments)[]): { moment: Moment; name: string; delayMs: number }[] =>
  names.flatMap((name) => {
    const moment = moments[name];
    return moment === undefined ? [] : [{ moment, name: moment.name, delayMs: random.between(0, 120) }];
  });

let adminKey = '';
let fileId = '';
const content = `${JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: {} })}\n`;

// In this order: each start finds the data directory as the one before left it.
describe('SIGTERM during npm start ends everything in order, with status 0', () => {
  test.each(withDelays('creating', 'begun', 'starting', 'launching', 'migrating'))(
    'on a first start $name, $delayMs ms later',
    ({ moment, delayMs }) => stopAt(moment, delayMs),
  );

  test('after all of them a start works and keeps what it is given', async () => {
    const platform = await npmStart(env);
    adminKey = (await readFile(path.join(dataDir, 'admin.key'), 'utf8')).trim();
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new Blob([content]), 'one.jsonl');
    const headers = { authorization: `Bearer ${adminKey}` };
    const response = await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers, body: form });
    ({ id: fileId } = (await response.json()) as { id: string });
    expect(response.status).toBe(200);
    platform.signal('SIGTERM');
    await expectOrder(platform.ended);
  });

  test.each(withDelays('simulator', 'migrated', 'listening'))(
    'on a later start $name, $delayMs ms later',
    ({ moment, delayMs }) => stopAt(moment, delayMs),
  );

  test('on a later start soon after it is ready, and nothing is lost', async () => {
    const platform = await npmStart(env);
    const headers = { authorization: `Bearer ${adminKey}` };
    const response = await fetch(`${platform.baseUrl}/files/${fileId}/content`, { headers });
    expect([response.status, await response.text()]).toEqual([200, content]);
    platform.signal('SIGTERM');
    await expectOrder(platform.ended);
  });
});
