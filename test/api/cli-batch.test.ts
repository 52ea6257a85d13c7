import { createHash, randomBytes } from 'node:crypto';
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { createServer, request as httpRequest, type Server } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { chatLine, chatLines, toJsonl } from './batch-kit.ts';
import { hasTerminal, stable, setUp } from './cli-kit.ts';

// `sluice batch run` and what belongs to it.

const at = setUp();

const { write, read } = at;
const list = async (what: 'files' | 'batches'): Promise<{ id: string }[]> => {
  const headers = { authorization: `Bearer ${at.platform.adminKey}` };
  const answer = await (await fetch(`${at.platform.baseUrl}/${what}`, { headers })).json();
  return (answer as { data: { id: string }[] }).data;
};

/** A proxy before the platform that breaks connections: uploads after some bytes, downloads after some, each as often as asked. */
async function breakingProxy(breaks: {
  uploadsAfter?: number;
  downloadsAfter?: number;
  /** The part of an upload, from 1, that never arrives. */
  stalledPart?: number;
  port?: number;
  times: number;
}) {
  const target = new URL(at.platform.baseUrl);
  let left = breaks.times;
  let parts = 0;
  const ranges: (string | undefined)[] = [];
  const proxy: Server = createServer((request, response) => {
    const { method, url: requestPath = '', headers } = request;
    if (requestPath.endsWith('/parts') && ++parts === breaks.stalledPart) {
      request.resume();
      return;
    }
    const forward = httpRequest({ host: target.hostname, port: target.port, path: requestPath, method, headers });
    forward.on('error', () => response.destroy());
    let received = 0;
    request.on('data', (piece: Buffer) => {
      received += piece.length;
      if (
        requestPath === '/v1/files' &&
        breaks.uploadsAfter !== undefined &&
        received > breaks.uploadsAfter &&
        left > 0
      ) {
        left -= 1;
        forward.destroy();
        request.socket.destroy();
      } else forward.write(piece);
    });
    request.on('end', () => forward.end());
    forward.on('response', (answer) => {
      const isDownload = /\/(?:content|results)(?:\?|$)/.test(requestPath);
      if (isDownload) ranges.push(headers.range);
      response.writeHead(answer.statusCode ?? 500, answer.headers);
      let sent = 0;
      let isBroken = false;
      answer.on('data', (piece: Buffer) => {
        const room = isDownload && left > 0 ? Math.max(0, (breaks.downloadsAfter ?? Infinity) - sent) : Infinity;
        response.write(piece.subarray(0, Math.min(piece.length, room)), () => {
          if (sent < (breaks.downloadsAfter ?? Infinity) || !isDownload || left === 0 || isBroken) return;
          [left, isBroken] = [left - 1, true];
          response.destroy();
        });
        sent += piece.length;
      });
      answer.on('end', () => {
        if (!isBroken && (sent < (breaks.downloadsAfter ?? Infinity) || left === 0)) response.end();
      });
    });
  });
  proxy.listen(breaks.port ?? 0, '127.0.0.1');
  await once(proxy, 'listening');
  const close = async (): Promise<void> => {
    proxy.closeAllConnections();
    proxy.close();
  };
  const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  return { url, ranges, left: () => left, parts: () => parts, close };
}

test('a batch runs from a file to its answers on stdout, and a repeat delivers the same without a new batch', async () => {
  const file = await write('in.jsonl', toJsonl(chatLines(20)));
  const first = await at.cli.run(['batch', 'run', file, '--metadata', 'run=7']);
  expect(first).toMatchObject({ code: 0 });
  const lines = first.stdout.trimEnd().split('\n');
  expect(lines.map((line) => (JSON.parse(line) as { custom_id: string }).custom_id)).toEqual(
    chatLines(20).map((line) => line['custom_id']),
  );
  expect(stable(first.stderr, at.platform)).toMatch(
    /^batch_ID: submitted, 20 lines\n[^]*batch_ID: completed, 20 of 20 lines answered, 0 failed, \$/,
  );
  const again = await at.cli.run(['batch', 'run', file, '--metadata', 'run=7']);
  expect(again.stdout).toBe(first.stdout);
  expect(stable(again.stderr, at.platform)).toMatch(/^batch_ID: already exists; use --again to create another batch\n/);
  expect(await list('batches')).toHaveLength(1);

  // On another machine, which remembers nothing, the Idempotency-Keys find it.
  const elsewhere = await at.cli.run(['batch', 'run', file, '--metadata', 'run=7'], {
    env: { XDG_STATE_HOME: `${at.cli.folder}/other` },
  });
  expect(elsewhere.stdout).toBe(first.stdout);
  expect(await list('batches')).toHaveLength(1);
  expect(await list('files')).toHaveLength(2);

  const anew = await at.cli.run(['batch', 'run', file, '--metadata', 'run=7', '--again', '-o', 'out.jsonl']);
  expect([anew.code, anew.stdout]).toEqual([0, '']);
  expect((await read('out.jsonl')).trimEnd().split('\n')).toHaveLength(20);
  expect(await list('batches')).toHaveLength(2);
});

test('lines from standard input run as those of a file do, also when they are piped in again', async () => {
  const run = () => at.cli.run(['batch', 'run', '-', '--metadata', 'from=stdin'], { stdin: toJsonl(chatLines(2)) });
  const piped = await run();
  expect(piped).toMatchObject({ code: 0, stdout: expect.stringMatching(/^\{.*\}\n\{.*\}\n$/) });
  const again = await run();
  expect(again).toMatchObject({ code: 0, stdout: piped.stdout, stderr: expect.stringContaining('already exists') });
});

test('a dry run says what a batch would cost, leaves nothing behind, and ends with 1 if lines would be refused', async () => {
  const before = await list('files');
  const file = await write('dry.jsonl', toJsonl(chatLines(20, { max_tokens: 10 })));
  const shown = await at.cli.run(['batch', 'dry-run', file, '--table']);
  expect(shown).toMatchObject({
    code: 0,
    stderr: expect.stringMatching(/^20 lines: \$\S+ simulated for the input, at most \$\S+ simulated/),
  });
  expect(shown.stdout.split('\n')[1]).toMatch(
    /^@simulator\/sim-small +20 +140 +200 +\$\S+ simulated +\$\S+ simulated +Calls simulator/,
  );
  const piped = await at.cli.run(['batch', 'dry-run', file, '--model', '@simulator/sim-large']);
  expect(JSON.parse(piped.stdout)).toMatchObject({
    valid: true,
    models: [{ model: '@simulator/sim-large', lines: 20 }],
  });
  const nobody = await write('dry.jsonl', toJsonl(chatLines(2, { model: '@nobody/any' })));
  const refused = await at.cli.run(['batch', 'dry-run', nobody]);
  expect([refused.code, JSON.parse(refused.stdout)]).toMatchObject([1, { valid: false }]);
  expect(await list('files')).toEqual(before);
});

test('what is wrong with the input is reported by line before anything is sent', async () => {
  const filesBefore = await list('files');
  const lines = [
    JSON.stringify(chatLine('a')),
    '{"custom_id": "b"',
    JSON.stringify({ ...chatLine('c'), method: 'GET' }),
    JSON.stringify({ ...chatLine('d'), url: '/v1/embeddings' }),
    JSON.stringify({ ...chatLine('e'), custom_id: 5 }),
    JSON.stringify(chatLine('a')),
  ];
  const { code, stdout, stderr } = await at.cli.run(['batch', 'run', await write('bad.jsonl', lines.join('\n'))]);
  expect([code, stdout]).toEqual([1, '']);
  expect(stderr.split('\n').map((line) => line.trim())).toEqual([
    'error: The input is invalid. Nothing was sent.',
    expect.stringMatching(/^bad\.jsonl:2: not valid JSON/),
    'bad.jsonl:3: method must be "POST".',
    'bad.jsonl:4: url is /v1/embeddings, but the first line has /v1/chat/completions. All lines must have the same url.',
    'bad.jsonl:5: custom_id must be a non-empty string.',
    'bad.jsonl:6: custom_id "a" is already used in line 1. Each custom_id must be unique.',
    '',
  ]);
  expect(await list('files')).toEqual(filesBefore);
  expect(await at.cli.run(['batch', 'run', 'none.jsonl'])).toMatchObject({
    code: 1,
    stderr: 'error: none.jsonl cannot be read: it does not exist.\n',
  });
});

test('lines that fail are exit code 3, in their own file, grouped by cause, and can be repeated', async () => {
  const input = toJsonl([chatLine('good'), chatLine('bad', { model: '@simulator/sim-fault-400' })]);
  const mixed = await write('mixed.jsonl', input);
  const { code, stdout, stderr } = await at.cli.run(['batch', 'run', mixed, '--window', 'immediate']);
  expect(code).toBe(3);
  expect(stdout.trimEnd().split('\n')).toHaveLength(1);
  expect(stderr).toMatch(/\n {2}1 failed with \w+/);
  const id = /batch_[0-9a-f]{32}/.exec(stderr)?.[0] ?? '';
  const results = await at.cli.run(['batch', 'results', id, '-o', 'good.jsonl', '--errors', 'bad.jsonl']);
  expect(results.code).toBe(3);
  expect(JSON.parse(await read('bad.jsonl'))).toMatchObject({ custom_id: 'bad' });
  expect(await read('good.jsonl')).toBe(stdout);
  expect((await at.cli.run(['batch', 'watch', id])).code).toBe(3);
  const failures = await at.cli.run(['batch', 'failures', id]);
  expect(JSON.parse(failures.stdout)).toMatchObject({ count: 1, lines: [2] });
  const failed = await at.cli.run(['batch', 'lines', id, '--outcome', 'failed', '--table']);
  expect(failed.stdout.split('\n')[0]).toMatch(/^LINE +CUSTOM ID +OUTCOME +STATUS +MODEL +ERROR$/);
  expect(failed.stdout.split('\n')[1]).toMatch(/^2 +bad +failed +400 /);
  expect(JSON.parse((await at.cli.run(['batch', 'line', id, '2'])).stdout)).toMatchObject({
    custom_id: 'bad',
    outcome: 'failed',
  });
  const verified = await at.cli.run(['batch', 'verify', id]);
  expect(verified.code).toBe(0);
  expect(JSON.parse(verified.stdout)).toEqual({
    batch_id: id,
    equal: true,
    input_lines: 2,
    output_lines: 1,
    error_lines: 1,
    missing: 0,
    repeated: 0,
    unknown: 0,
    miscounted: 0,
    roots: expect.any(Number),
    violations: [],
  });
  expect(JSON.parse(verified.stdout)).not.toMatchObject({ roots: 0 });
  const retry = await at.cli.run(['batch', 'retry', id]);
  expect(JSON.parse(retry.stdout)).toMatchObject({ retry_of: id });
});

test('a batch that the server refuses, or that is cancelled, is exit code 4', async () => {
  const slow = await write('slow.jsonl', toJsonl(chatLines(50, { model: '@simulator/sim-small+6s' })));
  const detached = await at.cli.run(['batch', 'run', slow, '--detach']);
  expect(detached.code).toBe(0);
  const id = /batch_[0-9a-f]{32}/.exec(detached.stderr)?.[0] ?? '';
  expect(await at.cli.run(['batch', 'results', id])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('and has no result files yet'),
  });
  const paused = await at.cli.run(['batch', 'pause', id]);
  expect(JSON.parse(paused.stdout)).toMatchObject({ id, paused_at: expect.any(Number) });
  expect((await at.cli.run(['batch', 'list', '--limit', '1', '--table'])).stdout).toContain(' paused ');
  const resumed = await at.cli.run(['batch', 'resume', id]);
  expect(JSON.parse(resumed.stdout)).toMatchObject({ id, paused_at: null });
  expect((await at.cli.run(['batch', 'cancel', id])).code).toBe(0);
  const watched = await at.cli.run(['batch', 'watch', id, '--json']);
  expect(JSON.parse(watched.stdout)).toMatchObject({ id, status: 'cancelled' });
  expect(watched.code).toBe(4);
  const listed = await at.cli.run(['batch', 'list', '--limit', '1', '--table']);
  expect(stable(listed.stdout, at.platform)).toMatch(
    /^ID +STATUS +LINES +FAILED +COST +CREATED +ENDPOINT\nbatch_ID +cancelled /,
  );
});

test('Ctrl-C detaches without cancelling and says how to come back; the same command goes on', async () => {
  const file = await write('held.jsonl', toJsonl(chatLines(4, { model: '@simulator/sim-small+1s' })));
  const { code, stderr } = await at.cli.run(['batch', 'run', file], {
    onStart: (child) =>
      child.stderr?.on('data', (text: string) => {
        if (text.includes('submitted')) child.kill('SIGINT');
      }),
  });
  expect(code).toBe(130);
  expect(stable(stderr, at.platform)).toContain(
    'Interrupted.\n  The batch continues. To resume watching: sluice batch watch batch_ID\n' +
      '  To also get the results, repeat the command.\n',
  );
  const resumed = await at.cli.run(['batch', 'run', file]);
  expect(resumed.code).toBe(0);
  expect(resumed.stderr).toContain('already exists');
  expect(resumed.stdout.trimEnd().split('\n')).toHaveLength(4);
});

test.skipIf(!hasTerminal)('on a terminal progress is one line drawn over itself; Ctrl-C takes it away', async () => {
  const file = await write('drawn.jsonl', toJsonl(chatLines(12, { model: '@simulator/sim-small+2s' })));
  const redraw = '\r\u001b[K';
  let isInterrupted = false;
  let seen = '';
  const { code, stdout } = await at.cli.run(['batch', 'run', file, '--again'], {
    terminal: 70,
    onStart: (child) =>
      child.stdout?.on('data', (text: string) => {
        seen += text;
        const [, progress = ''] = seen.split('submitted');
        if (isInterrupted || progress.split(`${redraw}[`).length < 3) return;
        isInterrupted = true;
        child.stdin?.write('\u0003'); // what a terminal makes of Ctrl-C
      }),
  });
  expect(code).toBe(130);
  const shown = stable(stdout.replaceAll(redraw, '<'), at.platform).replace('^C', '').split('\r\n');
  const start = shown.findIndex((line) => line.endsWith('<batch_ID: submitted, 12 lines'));
  // The bar never begins a line of its own, fits into one, and is gone in the end.
  const states = (shown[start + 1] ?? '').split('<');
  expect(states.filter((state) => /^\[[#-]{24}\] /.test(state)).length).toBeGreaterThanOrEqual(2);
  expect(Math.max(...states.map((state) => state.length))).toBeLessThan(70);
  expect([states.at(-1), ...shown.slice(start + 2)]).toEqual([
    'Interrupted.',
    '  The batch continues. To resume watching: sluice batch watch batch_ID',
    '  To also get the results, repeat the command.',
    '',
  ]);
  // A terminal that was not told its size says 0, and nothing is cut.
  const listed = await at.cli.run(['batch', 'list', '--limit', '1'], { terminal: 0 });
  expect(listed.stdout).toContain(' /v1/chat/completions\r\n');
});

test('a batch whose lines wait says how many, for what, why and until when; a paused one says how to resume it', async () => {
  const file = await write('limited.jsonl', toJsonl(chatLines(2, { model: '@simulator/sim-fault-429-after-99999' })));
  const submitted = await at.cli.run(['batch', 'run', file, '--detach']);
  const id = /batch_\w+/.exec(`${submitted.stdout}${submitted.stderr}`)?.[0] ?? '';
  const untilSaid = async (sentence: RegExp) =>
    await at.cli.run(['batch', 'watch', id], {
      onStart(child) {
        let seen = '';
        child.stderr?.on('data', (text: string) => {
          seen += text;
          if (sentence.test(seen)) child.kill('SIGINT');
        });
      },
    });
  const at60 = String.raw`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.`;
  const waiting = new RegExp(
    String.raw`2 lines of model sim-fault-429-after-99999 through simulator are waiting: the provider limits the rate of ` +
      String.raw`these calls \(429\)\. Next attempt: ${at60} The batch expires: ${at60}`,
  );
  const watched = await untilSaid(waiting);
  expect(watched.stderr.match(new RegExp(waiting, 'g'))).toHaveLength(1);
  const shown = await at.cli.run(['batch', 'get', id, '--table']);
  expect(shown.stdout).toMatch(waiting);
  await at.cli.run(['batch', 'pause', id]);
  const paused = await untilSaid(/resume/);
  expect(paused.stderr).toMatch(
    new RegExp(
      `The batch is paused. No lines are called until it is resumed. The batch expires: ${at60} To continue: sluice batch resume ${id}`,
    ),
  );
  expect((await at.cli.run(['batch', 'cancel', id])).code).toBe(0);
});

test('a key that may not read events sees the progress by polling', async () => {
  const made = await at.cli.run(['batch', 'list']);
  expect(made.code).toBe(0);
  const response = await fetch(`${at.platform.baseUrl}/api-keys`, {
    method: 'POST',
    headers: { authorization: `Bearer ${at.platform.adminKey}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      name: 'few',
      scopes: ['batches.read', 'batches.write', 'files.read', 'files.write', 'chat.write'],
    }),
  });
  const { key } = (await response.json()) as { key: string };
  const file = await write('few.jsonl', toJsonl(chatLines(3)));
  const { code, stdout } = await at.cli.run(['batch', 'run', file], { env: { SLUICE_API_KEY: key } });
  expect([code, stdout.trimEnd().split('\n').length]).toEqual([0, 3]);
});

test('an upload and a download that break are taken up again, and every byte is the same', async () => {
  const content = 'x'.repeat(2_000);
  const input = toJsonl(
    Array.from({ length: 300 }, (_line, at) => chatLine(`line-${at}`, { messages: [{ role: 'user', content }] })),
  );
  const file = await write('large.jsonl', input);
  const uploads = await breakingProxy({ uploadsAfter: 200_000, times: 2 });
  const run = await at.cli.run(['batch', 'run', file, '-o', 'whole.jsonl'], { env: { SLUICE_URL: uploads.url } });
  await uploads.close();
  expect(run).toMatchObject({ code: 0 });
  expect(uploads.left()).toBe(0);
  const id = /batch_[0-9a-f]{32}/.exec(run.stderr)?.[0] ?? '';
  const { input_file_id: inputId } = JSON.parse((await at.cli.run(['batch', 'get', id])).stdout) as {
    input_file_id: string;
  };
  const back = await at.cli.run(['files', 'download', inputId]);
  expect(createHash('sha256').update(back.stdout).digest('hex')).toBe(createHash('sha256').update(input).digest('hex'));

  const downloads = await breakingProxy({ downloadsAfter: 30_000, times: 2 });
  const env = { SLUICE_URL: downloads.url };
  const again = await at.cli.run(['batch', 'results', id, '-o', 'again.jsonl'], { env });
  expect(again).toMatchObject({ code: 0 });
  expect(downloads.left()).toBe(0);
  expect(downloads.ranges).toEqual([
    undefined,
    expect.stringMatching(/^bytes=\d+-$/),
    expect.stringMatching(/^bytes=\d+-$/),
  ]);
  expect(await read('again.jsonl')).toBe(await read('whole.jsonl'));
  await downloads.close();
});

test('a large upload that is killed goes on with the parts that are missing, and every byte is the same', async () => {
  const partBytes = 16 * 1_048_576;
  const repeated = randomBytes(partBytes);
  const content = Buffer.concat([repeated, repeated, randomBytes(partBytes / 2)]);
  await writeFile(path.join(at.cli.folder, 'huge.bin'), content);
  const watched = await breakingProxy({ stalledPart: 3, times: 0 });
  const env = { SLUICE_URL: watched.url };
  const upload = ['files', 'upload', 'huge.bin', '--purpose', 'user_data'];
  const killed = await at.cli.run(upload, {
    env,
    onStart: (child) =>
      void eventually(
        async () => watched.parts(),
        (parts) => parts === 3,
      ).then(() => child.kill('SIGKILL')),
  });
  expect(killed.code).toBeNull();
  const done = await at.cli.run(upload, { env });
  expect(done.code).toBe(0);
  // The file has three parts, of which two had arrived.
  expect(watched.parts()).toBe(4);
  await watched.close();
  const { id } = JSON.parse(done.stdout) as { id: string };
  expect((await at.cli.run(['files', 'download', id, '-o', 'huge.back'])).code).toBe(0);
  expect((await readFile(path.join(at.cli.folder, 'huge.back'))).equals(content)).toBe(true);
});

test('an upload waits for a server that is restarted, and sends nothing twice', async () => {
  await writeFile(path.join(at.cli.folder, 'patient.bin'), randomBytes(33 * 1_048_576));
  const first = await breakingProxy({ stalledPart: 3, times: 0 });
  const port = Number(new URL(first.url).port);
  let second: Awaited<ReturnType<typeof breakingProxy>> | undefined;
  const { code, stderr } = await at.cli.run(['files', 'upload', 'patient.bin', '--purpose', 'user_data'], {
    env: { SLUICE_URL: first.url },
    onStart: (child) => {
      void eventually(
        async () => first.parts(),
        (parts) => parts === 3,
      ).then(first.close);
      child.stderr?.on('data', async (text: string) => {
        if (text.includes('The server is unavailable. Waiting for it.'))
          second = await breakingProxy({ times: 0, port });
      });
    },
  });
  await second?.close();
  expect([code, second?.parts(), stderr.match(/is unavailable/g)]).toEqual([0, 1, ['is unavailable']]);
});

test('a download that is killed leaves what came, and the next one goes on from there', async () => {
  const output = (await list('batches'))[0]?.id ?? '';
  const batch = JSON.parse((await at.cli.run(['batch', 'get', output])).stdout) as { output_file_id: string };
  const whole = (await at.cli.run(['files', 'download', batch.output_file_id])).stdout;
  const part = `${path.join(at.cli.folder, 'killed.jsonl')}.${batch.output_file_id}.part`;
  const download = ['files', 'download', batch.output_file_id, '-o', 'killed.jsonl'];
  const breaking = await breakingProxy({ downloadsAfter: 10_000, times: 100 });
  const arrived = async (): Promise<number> => (await stat(part).catch(() => null))?.size ?? 0;
  const killed = await at.cli.run(download, {
    env: { SLUICE_URL: breaking.url },
    onStart: (child) => void eventually(arrived, (bytes) => bytes > 0).then(() => child.kill('SIGKILL')),
  });
  await breaking.close();
  const kept = await arrived();
  expect([killed.code, kept > 0, kept < Buffer.byteLength(whole)]).toEqual([null, true, true]);
  const watched = await breakingProxy({ times: 0 });
  const env = { SLUICE_URL: watched.url };
  expect((await at.cli.run(download, { env })).code).toBe(0);
  expect(watched.ranges).toEqual([`bytes=${kept}-`]);
  expect(await read('killed.jsonl')).toBe(whole);
  // What is there may be something else: the whole is compared, and thrown away if it differs.
  await writeFile(part, 'z'.repeat(10_000));
  const damaged = await at.cli.run(download, { env });
  expect([damaged.code, damaged.stderr]).toEqual([1, expect.stringContaining('SHA-256')]);
  expect((await readdir(at.cli.folder)).filter((name) => name.endsWith('.part'))).toEqual([]);
  await watched.close();
  await eventually(
    async () => await read('killed.jsonl'),
    (text) => text === whole,
  );
});

test('results are followed while the batch runs, each once, although the connection breaks twice', async () => {
  const lines = chatLines(150, { model: '@simulator/sim-small+20ms' });
  const file = await write('followed.jsonl', toJsonl(lines));
  const submitted = await at.cli.run(['batch', 'run', file, '--detach', '--json']);
  const { id } = JSON.parse(submitted.stdout) as { id: string };
  const proxy = await breakingProxy({ downloadsAfter: 4_000, times: 2 });
  const followed = await at.cli.run(['batch', 'results', id, '--follow', '--server', proxy.url]);
  await proxy.close();
  expect([followed.code, proxy.left()]).toEqual([0, 0]);
  const results = await at.cli.run(['batch', 'results', id]);
  expect(followed.stdout.trimEnd().split('\n').toSorted()).toEqual(results.stdout.trimEnd().split('\n').toSorted());
  expect(followed.stderr).toContain('completed, 150 of 150 lines answered');

  const file2 = await at.cli.run(['batch', 'results', id, '--follow', '-o', 'x.jsonl']);
  expect([file2.code, file2.stderr]).toEqual([2, expect.stringContaining('--follow writes to stdout')]);
});
