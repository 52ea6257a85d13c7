import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { npmStart, standaloneEnvironment } from '#test/integration/standalone/npm-start.ts';
import { agents, model, type Agent, type Place } from './agents.ts';

// npm run test:agents -- --only codex
// Real coding agents, unmodified, against Sluice and its simulator: each runs two commands and finishes. They are installed
// outside the project, because together they have 1.3 GB, and see an empty environment and an empty home.
const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    /** Where the agents are installed; kept for the next time. */
    folder: { type: 'string', default: path.join(tmpdir(), 'sluice-agents') },
  },
});
const timeoutMs = 180_000;

type Ended = { code: number | null; output: string };

async function run(
  command: string,
  args: readonly string[],
  options: { cwd: string; env: NodeJS.ProcessEnv },
): Promise<Ended> {
  const child = spawn(command, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'], timeout: timeoutMs });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (output += String(chunk)));
  return await new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, output }));
  });
}

async function install(chosen: readonly Agent[]): Promise<void> {
  await mkdir(values.folder, { recursive: true });
  await writeFile(path.join(values.folder, 'package.json'), '{"private":true}');
  const packages = chosen.map(({ package: name, version }) => `${name}@${version}`);
  const { code, output } = await run('npm', ['install', '--no-fund', '--no-audit', ...packages], {
    cwd: values.folder,
    env: process.env,
  });
  if (code !== 0) throw new Error(`npm install ended with ${code}:\n${output}`);
}

/** Whether both commands have run, and what the calls cost by the request log. */
async function runAgent(agent: Agent, place: Omit<Place, 'home' | 'work'>): Promise<{ ok: boolean; note: string }> {
  const root = await mkdtemp(path.join(tmpdir(), `sluice-agent-${agent.name}-`));
  const here: Place = { ...place, home: path.join(root, 'home'), work: path.join(root, 'work') };
  await mkdir(here.home);
  await mkdir(here.work);
  try {
    await agent.prepare?.(here);
    const { PATH = '' } = process.env;
    const env = { PATH, HOME: here.home, ...agent.env(here) };
    const task = 'Run `echo one > one.txt` and then `echo two > two.txt`, and say that you are done.';
    const command = path.join(values.folder, 'node_modules/.bin', agent.command);
    const { code, output } = await run(command, agent.args(task, here), { cwd: here.work, env });
    const read = (name: string): Promise<string> => readFile(path.join(here.work, name), 'utf8').catch(() => '');
    const ok = code === 0 && (await read('one.txt')) === 'one\n' && (await read('two.txt')) === 'two\n';
    return { ok, note: ok ? '' : `ended with ${code}:\n${output.slice(-4_000)}` };
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}

const chosen = agents.filter(({ name }) => values.only === undefined || values.only.split(',').includes(name));
await install(chosen);
const dataDir = await mkdtemp(path.join(tmpdir(), 'sluice-agents-data-'));
const sluice = await npmStart(standaloneEnvironment(dataDir));
let failed = 0;
try {
  const key = (await readFile(path.join(dataDir, 'admin.key'), 'utf8')).trim();
  const root = sluice.baseUrl.replace(/\/v1$/, '');
  const ask = async (path: string, body?: object): Promise<Record<string, unknown>> => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const method = body === undefined ? 'GET' : 'POST';
    const answer = await fetch(`${root}/v1${path}`, { method, headers, ...(body && { body: JSON.stringify(body) }) });
    if (!answer.ok) throw new Error(`${path} answered ${answer.status}: ${await answer.text()}`);
    return (await answer.json()) as Record<string, unknown>;
  };
  // A provider that has only chat completions, so that every other dialect is translated.
  const { custom_host: host } = await ask('/virtual-keys/simulator');
  await ask('/virtual-keys', { name: 'Chat only', slug: 'chat', provider: 'cerebras', key: 'x', custom_host: host });
  await ask('/public-models', { name: model, targets: [{ provider: '@chat', model: 'sim-agent' }] });
  for (const agent of chosen) {
    const { ok, note } = await runAgent(agent, { root, key });
    process.stdout.write(`${ok ? 'ok    ' : 'FAILED'} ${agent.name} ${agent.version} (${agent.dialect}) ${note}\n`);
    if (!ok) failed += 1;
  }
} finally {
  sluice.signal('SIGTERM');
  await sluice.ended;
  await rm(dataDir, { recursive: true, force: true });
}
process.exitCode = failed === 0 ? 0 : 1;
