import { once } from 'node:events';
import { createWriteStream, openAsBlob } from 'node:fs';
import { mkdir, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describeCounts, describeFinding, runChecks } from '#apps/cli/checks/check.ts';
import { checks } from '#apps/cli/checks/checks.ts';
import { withMigratedPool } from '#apps/cli/operate/migrated-pool.ts';
import { BatchObject } from '#libs/contracts/batches/batches.ts';
import { createDatabase } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { Running } from '../standalone.ts';
import { StartError } from '../start-error.ts';
import { checkCalls, checkResults, type Finding } from './check-results.ts';
import { makeRequests } from './make-requests.ts';
import { count, createProgress } from './progress.ts';
import { readQuestions } from './read-questions.ts';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createParser } from 'eventsource-parser';
import { z } from 'zod';
import { FileObject } from '#libs/contracts/batches/files.ts';

export type DemoOptions = {
  running: Running;
  lines: number;
  /** The folder of the input, output and error files, which are not deleted. Prepared by `prepareFolder`. */
  folder: string;
  questionsFile?: string;
  signal: AbortSignal;
  stdout: { isTTY?: boolean; write: (text: string) => unknown };
  logger: Logger;
};

const pollMs = 200;
const endedStatuses = new Set(['completed', 'failed', 'expired', 'cancelled']);

/**
 * Submits a batch of generated requests through the public API, polls it until it ends, downloads its files and checks
 * them. Prints its findings while it runs, and returns whether all checks passed.
 */
export async function runDemo(options: DemoOptions): Promise<boolean> {
  const { running, folder, lines, signal, stdout, logger } = options;
  const key = running.keys.adminKey?.value.reveal() ?? '';
  const client = createGatewayClient({ url: running.localUrl, key, signal });
  const say = (text: string): void => void stdout.write(`${text}\n`);

  const input = await writeInput(options);
  say(`input      ${path.join(folder, 'input.jsonl')}`);
  say(
    `           ${count(lines)} requests, ${count(input.distinct)} different prompts (questions ${input.source}), ${sizeOf(input.bytes)}`,
  );

  const file = await client.uploadFile(path.join(folder, 'input.jsonl'));
  const createdAt = performance.now();
  const created = await client.createBatch(file.id, { origin: 'sluice demo' });
  say(`batch      ${created.id}, created in ${Math.round(performance.now() - createdAt)} ms`);
  const batch = await follow(client, created, options);
  say(`           ${batch.status} after ${((performance.now() - createdAt) / 1_000).toFixed(1)} s`);

  const files = await fetchFiles(client, batch, folder);
  for (const [name, fetched] of Object.entries(files)) if (fetched !== undefined) say(name.padEnd(11) + fetched);

  const findings: Finding[] = [
    { ok: batch.status === 'completed', text: `the batch is ${batch.status}` },
    ...(await checkResults({ batch, expected: input.expected, outputFile: files.output, errorFile: files.errors })),
    checkCalls(await simulatorStats(running, signal), batch),
    ...(await checkLog(running, logger)),
  ];
  say('live       a streamed completion as it arrives:');
  findings.push(await streamOnce(client, stdout));
  say('checks');
  for (const { ok, text } of findings) say(`  ${ok ? 'ok    ' : 'FAILED'}  ${text}`);
  return findings.every(({ ok }) => ok);
}

/**
 * Creates the folder and removes the files of an earlier run from it, but nothing else. Throws StartError if the folder is
 * not writable.
 */
export async function prepareFolder(folder: string): Promise<void> {
  try {
    await mkdir(folder, { recursive: true });
    for (const name of ['input', 'output', 'errors']) await rm(path.join(folder, `${name}.jsonl`), { force: true });
    await writeFile(path.join(folder, 'input.jsonl'), '');
  } catch (error) {
    if (!(error instanceof Error && 'code' in error)) throw error;
    throw new StartError(`The folder ${folder} is not writable (${String(error.code)}). Choose another --out.`);
  }
}

type Input = { expected: Map<string, 'output' | 'errors'>; distinct: number; bytes: number; source: string };

async function writeInput({ folder, lines, questionsFile, signal }: DemoOptions): Promise<Input> {
  const { questions, source } = await readQuestions(questionsFile);
  const target = path.join(folder, 'input.jsonl');
  const stream = createWriteStream(target);
  const expected = new Map<string, 'output' | 'errors'>();
  const prompts = new Set<string>();
  for (const { customId, body, endsIn } of makeRequests({ lines, questions })) {
    expected.set(customId, endsIn);
    prompts.add(JSON.stringify(body['messages']));
    const line = { custom_id: customId, method: 'POST', url: '/v1/chat/completions', body };
    if (!stream.write(`${JSON.stringify(line)}\n`)) await once(stream, 'drain', { signal });
  }
  stream.end();
  await once(stream, 'close', { signal });
  return { expected, distinct: prompts.size, bytes: (await stat(target)).size, source };
}

async function follow(client: GatewayClient, created: BatchObject, options: DemoOptions): Promise<BatchObject> {
  const { signal } = options;
  const progress = createProgress({ stream: options.stdout, lines: options.lines });
  for (;;) {
    const batch = await client.retrieveBatch(created.id);
    if (endedStatuses.has(batch.status)) {
      progress.end(batch.request_counts);
      const first = batch.errors?.data[0];
      if (first) options.stdout.write(`  the input file is invalid: line ${first.line ?? '-'}: ${first.message}\n`);
      return batch;
    }
    progress.show(batch.request_counts);
    await sleep(pollMs, signal);
    signal.throwIfAborted();
  }
}

type Files = { output: string | undefined; errors: string | undefined };

async function fetchFiles(client: GatewayClient, batch: BatchObject, folder: string): Promise<Files> {
  const fetchFile = async (id: string | null, name: string): Promise<string | undefined> => {
    if (id === null) return undefined;
    const target = path.join(folder, name);
    await client.download(id, target);
    return target;
  };
  return {
    output: await fetchFile(batch.output_file_id, 'output.jsonl'),
    errors: await fetchFile(batch.error_file_id, 'errors.jsonl'),
  };
}

async function simulatorStats({ simulatorUrl }: Running, signal: AbortSignal): Promise<unknown> {
  return await (await fetch(`${simulatorUrl}/stats`, { signal })).json();
}

/** `sluice check records digests`: the tables that the API reads match the event log, which was not changed. */
async function checkLog(running: Running, logger: Logger): Promise<Finding[]> {
  const options = { connectionString: running.databaseUrl(), applicationName: 'sluice-demo' };
  const chosen = checks.filter(({ name }) => name === 'records' || name === 'digests');
  return await withMigratedPool(options, logger, async (pool) => {
    const context = { pool, db: createDatabase(pool), logger, onProgress: () => {} };
    const reports = await runChecks(chosen, context, { repair: false });
    return reports.map(({ check, ok, counts, findings }) => ({
      ok,
      text: [`sluice check ${check}: ${describeCounts(counts)}`, ...findings.map(describeFinding)].join('; '),
    }));
  });
}

async function streamOnce(client: GatewayClient, stdout: DemoOptions['stdout']): Promise<Finding> {
  const body = {
    model: '@simulator/sim-small+40tps',
    messages: [{ role: 'user', content: 'What is an event log good for?' }],
    max_tokens: 60,
  };
  let pieces = 0;
  stdout.write('  ');
  const isDone = await client.streamChat(body, (text) => {
    pieces += 1;
    stdout.write(text.replaceAll('\n', '\n  '));
  });
  stdout.write('\n');
  return {
    ok: isDone && pieces > 1,
    text: `the live completion arrived in ${pieces} pieces${isDone ? '' : ', but without [DONE]'}`,
  };
}

const sizeOf = (bytes: number): string => `${(bytes / 1_048_576).toFixed(1)} MiB`;

const Problem = z.object({ error: z.object({ message: z.string() }) });
const Delta = z.object({ choices: z.array(z.object({ delta: z.object({ content: z.string().nullish() }) })) });

type GatewayClient = {
  uploadFile(file: string): Promise<FileObject>;
  createBatch(inputFileId: string, metadata: Record<string, string>): Promise<BatchObject>;
  retrieveBatch(id: string): Promise<BatchObject>;
  /** Streams a file's content into a local file. */
  download(fileId: string, target: string): Promise<void>;
  /** Streams a chat completion: each piece of text as it arrives. true when the stream ended with `[DONE]`. */
  streamChat(body: Record<string, unknown>, onText: (text: string) => void): Promise<boolean>;
};

/** The public API over HTTP, as any client would use it. Throws with the message of an error response. */
function createGatewayClient(options: { url: string; key: string; signal: AbortSignal }): GatewayClient {
  const { url, key, signal } = options;

  const call = async (route: string, init: RequestInit = {}): Promise<Response> => {
    const headers = new Headers(init.headers);
    headers.set('authorization', `Bearer ${key}`);
    const response = await fetch(`${url}/v1${route}`, { ...init, headers, signal });
    if (response.ok) return response;
    const problem = Problem.safeParse(await response.json().catch(() => undefined));
    const message = problem.data?.error.message ?? 'no message';
    throw new Error(`${init.method ?? 'GET'} ${route} failed with ${response.status}: ${message}`);
  };
  const post = (route: string, body: unknown): Promise<Response> =>
    call(route, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });

  return {
    async uploadFile(file) {
      const form = new FormData();
      form.set('purpose', 'batch');
      // The file is read while it is sent, so that a large file is not held in memory.
      form.set('file', await openAsBlob(file), path.basename(file));
      return FileObject.parse(await (await call('/files', { method: 'POST', body: form })).json());
    },
    async createBatch(inputFileId, metadata) {
      const body = { input_file_id: inputFileId, endpoint: '/v1/chat/completions', completion_window: '24h', metadata };
      return BatchObject.parse(await (await post('/batches', body)).json());
    },
    async retrieveBatch(id) {
      return BatchObject.parse(await (await call(`/batches/${id}`)).json());
    },
    async download(fileId, target) {
      const { body } = await call(`/files/${fileId}/content`);
      await pipeline(body === null ? Readable.from([]) : Readable.fromWeb(body), createWriteStream(target));
    },
    async streamChat(body, onText) {
      const response = await post('/chat/completions', { ...body, stream: true });
      let isDone = false;
      const parser = createParser({
        maxBufferSize: 1_048_576,
        onEvent: ({ data }) => {
          if (data === '[DONE]') isDone = true;
          else for (const { delta } of Delta.parse(JSON.parse(data)).choices) if (delta.content) onText(delta.content);
        },
      });
      const decoder = new TextDecoder();
      for await (const chunk of response.body ?? []) parser.feed(decoder.decode(chunk as Uint8Array, { stream: true }));
      return isDone;
    },
  };
}
