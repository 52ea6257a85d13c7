import { readFile } from 'node:fs/promises';
import { spawn, type ChildProcess } from 'node:child_process';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { eventually } from '#test/eventually.ts';
import type { UpstreamReply, UpstreamRequest } from '#test/upstream.ts';
import { createBatch, ended, type BatchCreateParams } from './batch-kit.ts';
import { startScriptedPlatform, type ScriptedPlatform } from './scripted-provider.ts';
import { sdks, type Sdk } from './sdk.ts';

const mebibyte = 1_048_576;
const [sdk] = sdks as [Sdk];
const json = { 'content-type': 'application/json' };

let scripted: ScriptedPlatform;

beforeEach(async () => {
  scripted = await startScriptedPlatform();
});
afterEach(() => scripted.stop());

type Limited = { process: ChildProcess; url: string; peakBytes: () => Promise<number> };

/** A process of the platform with a small heap; the whole test fails when it ends before the test does. */
async function startLimited(app: 'api' | 'worker', heapMiB = 256): Promise<Limited> {
  const { environment } = scripted.platform;
  const child = spawn(
    process.execPath,
    [`--max-old-space-size=${heapMiB}`, '--max-semi-space-size=16', `apps/${app}/main.ts`],
    {
      env: { ...process.env, ...environment, SLUICE_LOG_LEVEL: 'info', SLUICE_WORKER_PORT: '0' },
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  );
  onTestFinished(() => {
    const { exitCode, signalCode } = child;
    child.kill('SIGKILL');
    expect({ exitCode, signalCode }).toEqual({ exitCode: null, signalCode: null });
  });
  const peakBytes = async (): Promise<number> => {
    const status = await readFile(`/proc/${child.pid}/status`, 'utf8');
    return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1]) * 1_024;
  };
  const ready = app === 'api' ? 'listening' : 'health and metrics';
  for await (const line of createInterface(child.stdout)) {
    const logged = JSON.parse(line) as { msg: string; url?: string; port?: number };
    if (logged.msg !== ready) continue;
    child.stdout.resume();
    return { process: child, url: logged.url ?? `http://127.0.0.1:${logged.port}`, peakBytes };
  }
  throw new Error(`the ${app} process ended before it was ready`);
}

function post(url: string, body: string, signal?: AbortSignal): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${scripted.platform.adminKey}`, ...json },
    body,
    ...(signal ? { signal } : {}),
  });
}

const chat = (more = ''): string => `{"model":"@scripted/any","messages":[{"role":"user","content":"hi"}]${more}}`;
const completion = (content: string): string =>
  `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"${content}"},` +
  `"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`;
const smallObjects = (sizeBytes: number): string => `[${'{},'.repeat(sizeBytes / 3)}{}]`;

/** Calls until `work` is done: each of them is answered. */
async function callWhile(url: string, work: Promise<unknown>): Promise<void> {
  const over = new AbortController();
  void work.finally(() => over.abort()).catch(() => {});
  while (!over.signal.aborted) {
    const response = await post(url, chat());
    expect([response.status, await response.text()]).toEqual([200, completion('hello')]);
    await sleep(20, over.signal);
  }
}

test('bodies of small objects end no process, and other calls go on beside them', async () => {
  scripted.upstream.script((reply) => reply.respond(200, completion('hello'), json));
  const api = await startLimited('api');
  const large = chat(`,"x":${smallObjects(10_000_000)}`);
  const middle = chat(`,"x":${smallObjects(100_000)}`);
  const attack = Promise.all(
    [large, large, large, ...Array.from({ length: 20 }, () => middle)].map(async (body) => {
      const response = await post(api.url, body);
      await response.arrayBuffer();
      return response.status;
    }),
  );
  await callWhile(api.url, attack);
  const statuses = await attack;
  expect(statuses.slice(0, 3)).toEqual([400, 400, 400]);
  expect(statuses.filter((status) => ![200, 400, 503].includes(status))).toEqual([]);
  expect(await api.peakBytes()).toBeLessThan(800 * mebibyte);
});

test('answers of small objects end no process, and other calls go on beside them', async () => {
  const large = Buffer.from(`${completion('x').slice(0, -1)},"x":${smallObjects(60 * mebibyte)}}`);
  const middle = Buffer.from(`${completion('x').slice(0, -1)},"x":${smallObjects(3 * mebibyte)}}`);
  scripted.upstream.script((reply, request) => {
    const body = request.body.includes('large')
      ? large
      : request.body.includes('middle')
        ? middle
        : completion('hello');
    reply.respond(200, body, json);
  });
  const api = await startLimited('api');
  const calls = ['large', 'large', 'large', ...Array.from({ length: 10 }, () => 'middle')];
  const attack = Promise.all(
    calls.flatMap((user) =>
      [',"stream":true', ''].map(async (stream) => {
        const response = await post(api.url, chat(`,"user":"${user}"${stream}`));
        return { status: response.status, text: (await response.text()).slice(0, 500) };
      }),
    ),
  );
  await callWhile(api.url, attack);
  const answers = await attack;
  // What asks for a stream has to be parsed for it; the others pass, one after the other.
  const largest = answers.slice(0, 6);
  for (const { status, text } of largest.filter((_answer, index) => index % 2 === 0)) {
    expect({ status, text }).toEqual({ status: 502, text: expect.stringContaining('upstream_response_too_large') });
  }
  expect(largest.filter(({ status }, index) => index % 2 === 1 && ![200, 503].includes(status))).toEqual([]);
  expect(answers.filter(({ status }) => ![200, 502, 503].includes(status))).toEqual([]);
  expect(await api.peakBytes()).toBeLessThan(800 * mebibyte);
});

/** Runs a batch on a worker with a small heap; the provider answers each line with this many bytes. */
async function runLargeAnswers(
  answerBytes: number,
  lineCount: number,
  make: (reply: UpstreamReply, request: UpstreamRequest) => void,
  endpoint: BatchCreateParams['endpoint'] = '/v1/chat/completions',
): Promise<{ calls: number; counts: unknown; peakBytes: number; outputBytes: number }> {
  scripted.upstream.script(make);
  const worker = await startLimited('worker');
  const { adminKey, baseUrl } = scripted.platform;
  const client = new sdk.OpenAI({ apiKey: adminKey, baseURL: baseUrl });
  const body =
    endpoint === '/v1/embeddings'
      ? { model: '@scripted/any', input: 'hi' }
      : { model: '@scripted/any', messages: [{ role: 'user', content: 'hi' }] };
  const lines = Array.from({ length: lineCount }, (_, index) => ({
    custom_id: `line-${index}`,
    method: 'POST',
    url: endpoint,
    body,
  }));
  const batch = await createBatch(sdk, client, lines, { endpoint });
  const { request_counts: counts, output_file_id: outputFileId } = await ended(client, batch, 120_000);
  const output = outputFileId ? (await client.files.retrieve(outputFileId)).bytes : 0;
  expect(output).toBeGreaterThan(answerBytes * lineCount * 0.9);
  await eventually(() => worker.peakBytes(), Boolean);
  return { calls: scripted.upstream.requests.length, counts, peakBytes: await worker.peakBytes(), outputBytes: output };
}

test('a worker calls each line once whose answers are of 8 MiB, and stays small', async () => {
  const answer = completion('x'.repeat(8 * mebibyte));
  const run = await runLargeAnswers(8 * mebibyte, 40, (reply) => reply.respond(200, answer, json));
  expect(run).toMatchObject({ calls: 40, counts: { completed: 40, failed: 0 } });
  expect(run.peakBytes).toBeLessThan(700 * mebibyte);
}, 180_000);

test('a worker calls each line once whose answers of 20 MiB do not tell their length', async () => {
  const piece = 'x'.repeat(mebibyte);
  const run = await runLargeAnswers(20 * mebibyte, 12, async (reply) => {
    reply.head(200, json);
    const [before = '', after = ''] = completion('|').split('|');
    await reply.write(before);
    for (let sent = 0; sent < 20; sent += 1) await reply.write(piece);
    await reply.write(after);
    reply.end();
  });
  expect(run).toMatchObject({ calls: 12, counts: { completed: 12, failed: 0 } });
  expect(run.peakBytes).toBeLessThan(800 * mebibyte);
}, 180_000);

test('a worker takes answers that no line may hold as errors of their lines, and asks for each once', async () => {
  const piece = '{},'.repeat(mebibyte / 3);
  // Of unknown length: the pieces and the whole may be there at once.
  scripted.upstream.script(async (reply) => {
    reply.head(200, json);
    await reply.write(`${completion('x').slice(0, -1)},"x":[`);
    for (let sent = 0; sent < 60 && !reply.isClosed(); sent += 1) await reply.write(piece);
    await reply.write('{}]}');
    reply.end();
  });
  await startLimited('worker');
  const { adminKey, baseUrl } = scripted.platform;
  const client = new sdk.OpenAI({ apiKey: adminKey, baseURL: baseUrl });
  const body = { model: '@scripted/any', messages: [{ role: 'user', content: 'hi' }] };
  const lines = ['a', 'b'].map((id) => ({ custom_id: id, method: 'POST', url: '/v1/chat/completions', body }));
  const batch = await ended(client, await createBatch(sdk, client, lines), 60_000);
  expect(batch.request_counts).toEqual({ total: 2, completed: 0, failed: 2 });
  const errors = await (await client.files.content(batch.error_file_id ?? '')).text();
  expect(errors.match(/upstream_response_too_large/g)).toHaveLength(2);
  expect(scripted.upstream.requests).toHaveLength(2);
}, 120_000);
