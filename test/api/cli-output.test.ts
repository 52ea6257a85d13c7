import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { freePort } from '#test/free-port.ts';
import { chatLine, chatLines, toJsonl } from './batch-kit.ts';
import { hasTerminal, setUp } from './cli-kit.ts';
import { golden, transcriptOf } from './cli-transcript.ts';

// What commands print, as a whole: people and scripts read it. A change is seen in the difference of a text file, which
// `vitest run test/api/cli-output.test.ts -u` writes. apps/cli/program.test.ts fails for a command that is in none of them.

const at = setUp({ worker: false });
let worker: { stop: () => Promise<void> };
beforeAll(async () => {
  worker = await at.platform.startWorker();
});

/** A proxy that changes the content of files; unless `hasDigest`, it also takes away what would betray it. */
async function changingProxy(change: (text: string) => string, { hasDigest = false } = {}) {
  const origin = new URL(at.platform.baseUrl).origin;
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { authorization = '' } = request.headers;
    const upstream = await fetch(`${origin}${request.url}`, { headers: { authorization } });
    const text = await upstream.text();
    const digest = hasDigest ? upstream.headers.get('repr-digest') : null;
    response.writeHead(upstream.status, digest === null ? {} : { 'repr-digest': digest });
    response.end(request.url?.endsWith('/content') ? change(text) : text);
  };
  const server = createServer((request, response) => void answer(request, response)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close: () => void server.close() };
}

/** How many calls were seen before Ctrl-C depends on the moment. */
const firstRowOf = (transcript: string): string =>
  transcript
    .split('\n')
    .filter(
      (line, index, lines) => !line.startsWith('0000') || lines.findIndex((each) => each.startsWith('0000')) === index,
    )
    .join('\n');

const idIn = (text: string, prefix: string): string => new RegExp(`${prefix}[-_][0-9a-f]{32}`).exec(text)?.[0] ?? '';

test('profiles', async () => {
  const server = new URL(at.platform.baseUrl).origin;
  const transcript = await transcriptOf(at, [
    ['profiles', '--table'],
    { args: ['login', '--server', server, '--profile', 'here'], stdin: `${at.platform.adminKey}\n` },
    ['profiles', '--table'],
    ['profiles'],
    ['whoami', '--table'],
    ['logout', '--profile', 'here'],
    ['logout', '--profile', 'here'],
  ]);
  await expect(transcript).toMatchFileSnapshot(golden('profiles'));
});

test('files and batches', async () => {
  const lines = [chatLine('one'), chatLine('two', { model: '@simulator/sim-fault-400' })];
  await at.write('in.jsonl', toJsonl(lines));
  // The simulator does not know the signature.
  const hook = [`url=${at.platform.simulatorUrl}/hook`, 'name=Results', 'event_types=["batch.completed"]'];
  const created = await at.cli.run(['webhooks', 'create', ...hook.flatMap((member) => ['--set', member])]);
  const { id: endpoint } = JSON.parse(created.stdout) as { id: string };
  const run = await at.cli.run(['batch', 'run', 'in.jsonl', '-o', 'out.jsonl', '--errors', 'err.jsonl']);
  const id = /batch_[0-9a-f]{32}/.exec(run.stderr)?.[0] ?? '';
  const { stdout: deliveries } = await eventually(
    () => at.cli.run(['webhooks', 'deliveries', endpoint]),
    ({ stdout }) => stdout.includes('"last_status_code":401'),
  );
  const { id: delivery } = JSON.parse(deliveries) as { id: string };
  const uploaded = await at.cli.run(['files', 'upload', 'in.jsonl']);
  const { id: file } = JSON.parse(uploaded.stdout) as { id: string };
  const transcript = await transcriptOf(at, [
    ['files', 'get', file],
    ['files', 'get', file, '--table'],
    ['files', 'list', '--purpose', 'batch', '--table'],
    ['files', 'download', file, '-o', 'back.jsonl'],
    ['files', 'delete', file],
    ['files', 'get', file],
    ['batch', 'get', id, '--table'],
    ['batch', 'failures', id, '--table'],
    ['batch', 'line', id, '9'],
    ['batch', 'verify', id, '--table'],
    ['batch', 'pause', id],
    ['batch', 'cancel', id],
    ['batch', 'get', 'batch_none'],
    ['webhooks', 'deliveries', endpoint, '--status', 'pending', '--table'],
    ['webhooks', 'resend', endpoint, delivery],
  ]);
  expect(await at.read('back.jsonl')).toBe(toJsonl(lines));
  // The next attempt is due while a slow machine still runs the commands.
  const shown = transcript.replaceAll(/( pending +)\d+( +401 )/g, '$1N$2');
  await expect(shown).toMatchFileSnapshot(golden('files-and-batches'));
});

test('records, and files of records', async () => {
  const folder = path.join(at.cli.folder, 'records');
  await mkdir(folder);
  await writeFile(path.join(folder, 'label.yaml'), 'kind: label\nname: urgent\nspec:\n  description: first\n');
  await at.write('config.yaml', 'name: Twice\nslug: twice\nconfig: {virtual_key: simulator, retry: {attempts: 2}}\n');
  const first = await transcriptOf(at, [
    ['labels', 'create', '--set', 'name=story'],
    ['configs', 'create', '-f', 'config.yaml'],
    ['configs', 'create', '-f', 'config.yaml'],
    ['configs', 'create'],
    ['configs', 'create', '--set', 'nothing'],
    ['configs', 'get', 'twice', '--table'],
    ['configs', 'list', '--table'],
    ['configs', 'update', 'twice', '--set', 'name=Renamed'],
    ['configs', 'delete', 'twice', 'thrice'],
    ['keys', 'create', '--set', 'name=few', '--set', 'scopes=["labels.read"]', '--table'],
  ]);
  const [, id = ''] = /(label_[0-9a-f]{32})/.exec((await at.cli.run(['labels', 'list'])).stdout) ?? [];
  const second = await transcriptOf(at, [
    ['labels', 'get', id, '--table'],
    ['labels', 'update', id, '--set', 'description=told'],
    ['labels', 'list', '--table'],
    ['diff', '-f', 'records', '--table'],
    ['diff', '-f', 'records', '--exit-code'],
    ['apply', '-f', 'records'],
    ['diff', '-f', 'records'],
    ['apply', '-f', 'records', '--table'],
    ['apply', '-f', 'nowhere'],
    ['export', '-d', 'exported'],
    ['labels', 'delete', id],
    ['labels', 'get', id],
  ]);
  const transcript = first.replace(/slk_\w+/, 'slk_KEY').replace(/^(last_four +)\w{4}$/m, '$1LAST') + second;
  await expect(transcript).toMatchFileSnapshot(golden('records'));
});

test('batches, from the first line to the last result', async () => {
  await at.write('good.jsonl', toJsonl(chatLines(3)));
  await at.write('mixed.jsonl', toJsonl([chatLine('one'), chatLine('two', { model: '@simulator/sim-fault-400' })]));
  await at.write('nobody.jsonl', toJsonl([chatLine('one', { model: '@nobody/any' })]));
  await at.write('bad.jsonl', '{"custom_id": "a"\n{"custom_id": "b", "method": "GET"}\n');
  const mixed = idIn((await at.cli.run(['batch', 'run', 'mixed.jsonl', '--detach'])).stdout, 'batch');
  await at.cli.run(['batch', 'watch', mixed]);
  const transcript = await transcriptOf(at, [
    ['batch', 'dry-run', 'mixed.jsonl', '--table'],
    ['batch', 'dry-run', 'nobody.jsonl', '--table'],
    ['batch', 'run', 'good.jsonl', '-o', 'out.jsonl'],
    ['batch', 'run', 'good.jsonl', '-o', 'out.jsonl', '--json'],
    ['batch', 'run', 'good.jsonl', '--detach', '--table'],
    ['batch', 'run', 'mixed.jsonl', '-o', 'out.jsonl'],
    ['batch', 'run', 'mixed.jsonl', '-o', 'out.jsonl', '--errors', 'err.jsonl'],
    ['batch', 'run', 'nobody.jsonl', '-o', 'out.jsonl'],
    ['batch', 'run', 'bad.jsonl'],
    ['batch', 'watch', mixed, '--table'],
    ['batch', 'results', mixed, '-o', 'out.jsonl'],
    ['batch', 'lines', mixed, '--table'],
    ['batch', 'line', mixed, '2', '--table'],
    ['batch', 'line', mixed, 'two'],
    ['batch', 'retry', mixed, '--table'],
  ]);
  await expect(transcript).toMatchFileSnapshot(golden('batches'));
});

test.skipIf(!hasTerminal)('a batch that has not ended', async () => {
  // It is paused before a worker sees it, so that no line of it is called.
  await worker.stop();
  await at.write('held.jsonl', toJsonl(chatLines(4)));
  const id = idIn((await at.cli.run(['batch', 'run', 'held.jsonl', '--detach'])).stdout, 'batch');
  await at.cli.run(['batch', 'pause', id]);
  worker = await at.platform.startWorker();
  await eventually(
    async () => (await at.cli.run(['batch', 'get', id])).stdout,
    (text) => text.includes('"in_progress"'),
  );
  const transcript = await transcriptOf(at, [
    ['batch', 'results', id],
    ['batch', 'verify', id],
    ['batch', 'get', id, '--table'],
    { args: ['batch', 'watch', id], terminal: 80, interruptAfter: '0/4 lines' },
    { args: ['batch', 'run', 'held.jsonl', '-o', 'out.jsonl'], terminal: 80, interruptAfter: '0/4 lines' },
    ['batch', 'resume', id, '--table'],
    ['batch', 'watch', id, '--table'],
  ]);
  await worker.stop();
  const other = idIn((await at.cli.run(['batch', 'run', 'held.jsonl', '--detach', '--again'])).stdout, 'batch');
  const pausedAndCancelled = await transcriptOf(at, [
    ['batch', 'pause', other, '--table'],
    ['batch', 'cancel', other],
  ]);
  worker = await at.platform.startWorker();
  const ended = await transcriptOf(at, [
    ['batch', 'watch', other, '--table'],
    ['batch', 'results', other],
    ['batch', 'list', '--limit', '3', '--table'],
  ]);
  await expect(transcript + pausedAndCancelled + ended).toMatchFileSnapshot(golden('unfinished-batches'));
});

test('a batch whose results were changed on the way does not pass', async () => {
  const [id = ''] =
    /batch_[0-9a-f]{32}/.exec((await at.cli.run(['batch', 'run', 'good.jsonl', '--detach'])).stdout) ?? [];
  const twice = await changingProxy((text) => {
    const [first = '', second = '', ...rest] = text.split('\n');
    return text.includes('"response"') ? [first, first, ...rest].join('\n') || second : text;
  });
  const damaged = await changingProxy((text) => text.replace('"status_code":200', '"status_code":201'), {
    hasDigest: true,
  });
  const transcript = await transcriptOf(at, [
    { args: ['batch', 'verify', id, '--table'], env: { SLUICE_URL: twice.url }, note: 'a line comes twice' },
    { args: ['batch', 'verify', id, '--table'], env: { SLUICE_URL: damaged.url }, note: 'a byte is another' },
    { args: ['batch', 'results', id, '-o', 'out.jsonl'], env: { SLUICE_URL: damaged.url }, note: 'a byte is another' },
  ]);
  twice.close();
  damaged.close();
  await expect(transcript).toMatchFileSnapshot(golden('changed-results'));
});

test('what cannot be done', async () => {
  const away = `http://127.0.0.1:${await freePort()}`;
  await at.write('broken.json', '{"name": ');
  await at.write('few.jsonl', toJsonl(chatLines(1)));
  const noKey = { SLUICE_API_KEY: '' };
  const transcript = await transcriptOf(at, [
    { args: ['whoami'], env: { ...noKey, SLUICE_URL: '' }, note: 'no server' },
    { args: ['whoami'], env: noKey, note: 'no key' },
    { args: ['whoami'], env: { SLUICE_API_KEY: 'wrong' }, note: 'a wrong key' },
    { args: ['batch', 'run', 'few.jsonl'], env: { SLUICE_URL: away }, note: 'no server there' },
    { args: ['batch', 'watch', 'batch_any'], env: { SLUICE_URL: away }, note: 'no server there' },
    { args: ['login', '--server', away], stdin: 'key', note: 'no server there' },
    { args: ['login'], stdin: '', note: 'nothing on stdin' },
    ['whoami', '--profile', 'production'],
    ['whoami', '--server', 'ftp://example.com'],
    ['batch', 'run', 'none.jsonl'],
    ['batch', 'run', '.'],
    ['files', 'upload', 'none.jsonl'],
    ['labels', 'create', '-f', 'none.json'],
    ['labels', 'create', '-f', 'broken.json'],
    ['labels', 'create', '--set', 'colour=red'],
    ['labels', 'list', '--limit', '0'],
    ['batch', 'runn', 'few.jsonl'],
    ['batch', 'run'],
    ['batch', 'run', 'few.jsonl', '--outputs', 'x'],
    ['batch', 'run', 'few.jsonl', '--window', '1h'],
    ['batch', 'run', 'few.jsonl', '--metadata', 'run'],
    ['logs', 'search', '--since', 'yesterday'],
    ['logs', 'search', '--status', 'bad'],
    ['logs', 'get', 'log_none'],
    ['events', 'replay', 'label_none'],
    ['usage', '--by', 'colour'],
    ['completion', 'tcsh'],
    ['bach'],
  ]);
  await expect(transcript.replaceAll(away, 'AWAY')).toMatchFileSnapshot(golden('refusals'));
});

test('logs, events and costs', async () => {
  const label = idIn((await at.cli.run(['labels', 'create', '--set', 'name=followed'])).stdout, 'label');
  await at.cli.run(['labels', 'update', label, '--set', 'description=changed']);
  const [first = ''] = (await at.cli.run(['events', 'show', label])).stdout.split('\n');
  const { id: firstEvent } = JSON.parse(first) as { id: string };
  const call = async (): Promise<void> => {
    const response = await fetch(`${at.platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${at.platform.adminKey}`,
        'content-type': 'application/json',
        'x-gateway-trace-id': 'followed',
      },
      body: JSON.stringify({ model: '@simulator/sim-small', messages: [{ role: 'user', content: 'One' }] }),
    });
    await response.text();
  };
  await call();
  const search = ['logs', 'search', '--trace', 'followed'];
  const found = await eventually(
    async () => (await at.cli.run(search)).stdout,
    (text) => text !== '',
  );
  const { id: log } = JSON.parse(found) as { id: string };
  const followed = transcriptOf(at, [
    { args: ['logs', 'tail', '--trace', 'followed', '--table'], interruptAfter: 'sim-small', note: 'a call later' },
  ]);
  let isFollowed = false;
  void followed.finally(() => (isFollowed = true));
  await eventually(
    async () => {
      if (!isFollowed) await call();
      return isFollowed;
    },
    (done) => done,
    { intervalMs: 500 },
  );
  const transcript = await transcriptOf(at, [
    [...search, '--limit', '1', '--table'],
    ['logs', 'get', log, '--table'],
    ['logs', 'export', '--since', '2026-01-01', '--until', '2026-01-02', '-o', 'calls.jsonl'],
    ['usage', '--by', 'model', '--since', '2026-01-01', '--until', '2026-01-02', '--table'],
    ['events', 'list', '--record', label, '--table'],
    ['events', 'list', '--type', 'label.painted', '--table'],
    ['events', 'show', label, '--table'],
    ['events', 'replay', label, '--version', '1', '--table'],
    ['events', 'records', 'label', '--limit', '1', '--table'],
    ['events', 'diff', label, '--table'],
    { args: ['events', 'tail', '--record', label, '--after', firstEvent, '--table'], interruptAfter: 'changed' },
  ]);
  await expect(transcript + firstRowOf(await followed)).toMatchFileSnapshot(golden('logs-and-events'));
  const past = await at.cli.run(['events', 'tail', '--record', label, '--start', '7d', '--end', '0m', '--json']);
  const listed = await at.cli.run(['events', 'list', '--record', label, '--start', '7d', '--workspace', 'default']);
  expect([past.code, past.stdout]).toEqual([0, listed.stdout]);
  expect(past.stdout).toContain(firstEvent);
  const none = await at.cli.run(['events', 'show', label, '--end', '7d']);
  expect(none.stdout).toBe('');
});

test('the doctor', async () => {
  const local = { ...at.platform.environment };
  const made = await at.cli.run(['keys', 'create', '--set', 'name=few', '--set', 'scopes=["batches.read"]']);
  const { key } = JSON.parse(made.stdout) as { key: string };
  const transcript = await transcriptOf(at, [
    ['doctor', '--table'],
    { args: ['doctor', '--table'], env: { SLUICE_API_KEY: key }, note: 'a key with few scopes' },
    { args: ['doctor', '--table'], env: { SLUICE_API_KEY: 'wrong' }, note: 'a wrong key' },
    { args: ['doctor', '--table'], env: { SLUICE_API_KEY: '' }, note: 'no key' },
    { args: ['doctor', '--local', '--table'], env: local, note: 'on the machine of the server' },
  ]);
  // What this machine has is not what is compared.
  const text = transcript
    .replaceAll(/^(?:ok|warning|problem) +(?:files|open files)\b.*\n(?: {22}.*\n)?/gm, '')
    .replaceAll(/^\w+ +subscriber +(?:activity|seal) is .*\n/gm, '');
  await expect(text).toMatchFileSnapshot(golden('doctor'));
});

test('maintenance of a server', async () => {
  const env = at.platform.environment;
  const commands = [
    ['migrate'],
    ['check'],
    ['check', 'records', 'analytics', '--repair'],
    ['check', 'digests', '--json'],
    ['check', 'nothing'],
    ['replay', '--into', 'replayed'],
    ['subscribers', 'list'],
    ['subscribers', 'rebuild', 'activity'],
    ['subscribers', 'rebuild', 'nobody'],
    ['subscribers', 'restart', 'activity'],
    ['keys', 'rewrap'],
    ['keys', 'create-admin', '--workspace', 'nowhere'],
    ['audit', 'erase', 'user_of_nobody', '--reason', 'asked on a form'],
    ['prices', 'list'],
    ['prices', 'show', 'no-such-model'],
    ['prices', 'refresh', '--file', 'none.json'],
    ['providers'],
  ];
  await eventually(
    async () => (await at.cli.run(['subscribers', 'list'], { env })).stdout,
    (text) => text === 'activity: up to date\nseal: up to date\nwebhooks: up to date\n',
  );
  const transcript = await transcriptOf(
    at,
    commands.map((args) => ({ args, env })),
  );
  // How much there is to check depends on the earlier tests.
  const text = transcript
    .replaceAll(/^note +logs: .*\n/gm, '')
    .replaceAll(/^((?:logs|calls|analytics|results) +ok +).*$/gm, '$1N of each')
    .replaceAll(/\b(events|rows|entries): \d+/g, '$1: N')
    .replaceAll(/"(events)":\d+/g, '"$1":N')
    .replaceAll(/\b\d+ (events|secrets)\b/g, 'N $1')
    // One provider stands for all, so that a new price is no change here.
    .replaceAll(/^(?!simulator)[\w-]+ +(?:\d+ models?|pass-through:|transformed:).*\n/gm, '');
  await expect(text).toMatchFileSnapshot(golden('maintenance'));
});

test.skipIf(!hasTerminal)('terminals of many widths and habits', async () => {
  const on = (terminal: number, args: string[], env: Record<string, string> = {}, note?: string) => ({
    args,
    terminal,
    env,
    ...(note === undefined ? {} : { note }),
  });
  await at.write('a-file-with-a-name-that-is-longer-than-a-narrow-terminal.jsonl', toJsonl(chatLines(1)));
  await at.cli.run(['files', 'upload', 'a-file-with-a-name-that-is-longer-than-a-narrow-terminal.jsonl']);
  const list = ['batch', 'list', '--limit', '2'];
  const files = ['files', 'list', '--limit', '1'];
  const transcript = await transcriptOf(at, [
    on(0, list),
    on(120, list),
    on(80, list),
    on(50, list),
    on(80, files, { LC_ALL: 'C.UTF-8' }, 'UTF-8'),
    on(80, files, { LC_ALL: 'C' }, 'no UTF-8'),
    on(80, ['whoami']),
    on(80, ['batch', 'list', '--limit', '1', '--json']),
    on(80, ['batch', 'run', 'good.jsonl', '-o', 'out.jsonl'], { TERM: 'dumb' }, 'TERM=dumb'),
    on(80, ['labels', 'get', 'label_none']),
  ]);
  await expect(transcript).toMatchFileSnapshot(golden('terminals'));
  const coloured = await at.cli.run(['whoami'], { terminal: 80, env: { TERM: 'xterm' } });
  expect(coloured.stdout).toContain('\u001b[');
  for (const env of [{ TERM: 'dumb' }, { TERM: 'xterm', NO_COLOR: '1' }])
    expect((await at.cli.run(['whoami'], { terminal: 80, env })).stdout).not.toContain('\u001b');
});

test('a traffic replay', async () => {
  const lines = [chatLine('one'), chatLine('two'), chatLine('three', { model: '@simulator/sim-fault-400' })];
  await at.write('source.jsonl', toJsonl(lines));
  const source = idIn((await at.cli.run(['batch', 'run', 'source.jsonl', '--detach'])).stdout, 'batch');
  await at.cli.run(['batch', 'watch', source]);
  const transcript = await transcriptOf(at, [
    ['replay-traffic', '--batch', source, '--model', '@simulator/sim-text', '--dry-run', '--table'],
    ['replay-traffic', '--batch', source, '--model', '@simulator/sim-text', '--table'],
    ['replay-traffic', '--batch', source, '--model', '@unknown/any'],
    ['replay-traffic', '--batch', source, '--from', '24h'],
    ['replay-traffic', '--where', 'trace_id=none', '--from', '2026-11-21'],
  ]);
  await expect(transcript.replaceAll(/ *\d+ ms/g, ' N ms')).toMatchFileSnapshot(golden('traffic-replays'));
});

// Last, because its budget applies to the calls of the workspace.
test('imports of other gateways', async () => {
  const config = {
    model_list: [
      { model_name: 'gpt-4o', litellm_params: { model: 'openai/gpt-4o', api_key: 'sk-literal-key', timeout: 60 } },
      { model_name: 'gpt-4o', litellm_params: { model: 'azure/gpt-4o', api_base: 'https://contoso.openai.azure.com' } },
      { model_name: 'local', litellm_params: { model: 'ollama/llama3', api_base: 'os.environ/OLLAMA' } },
    ],
    litellm_settings: { max_budget: 100, budget_duration: '30d', callbacks: ['prometheus'] },
    general_settings: { master_key: 'sk-literal-master' },
    unknown: 1,
  };
  await at.write('config.yaml', JSON.stringify(config));
  const { model_list: _models, ...budget } = config;
  await at.write('budget.yaml', JSON.stringify(budget));
  const transcript = await transcriptOf(at, [
    ['import', 'litellm', 'config.yaml', '--table', '--out', 'records.yaml'],
    ['import', 'litellm', 'budget.yaml'],
    ['import', 'litellm', 'budget.yaml', '--apply', '--table'],
    ['import', 'litellm', 'budget.yaml', '--apply', '--table'],
    ['import', 'litellm', 'config.yaml', '--apply', '--table'],
    ['import', 'litellm', 'config.yaml', '--apply', '--plan'],
    ['import', 'litellm', 'nowhere.yaml'],
  ]);
  expect(transcript).not.toContain('sk-literal');
  await expect(transcript).toMatchFileSnapshot(golden('imports'));
});
