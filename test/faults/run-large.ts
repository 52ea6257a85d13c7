import { createHash, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, createWriteStream, openAsBlob } from 'node:fs';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { Readable } from 'node:stream';
import { parseArgs } from 'node:util';
import { isTerminal, type BatchEvent } from '#libs/batches/batch/batch.ts';
import type { OpenAiBatch } from '#libs/batches/batch/to-openai-batch.ts';
import { compareResults, type SettledEvent } from '#libs/batches/look/compare-results.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { readFamilyCpuSeconds, readUsage } from '#test/bench/process-usage.ts';
import { checkResidue } from './collect-evidence.ts';
import type { Fault } from './plan-round.ts';
import { createRandom } from './random.ts';
import { startRig, type Rig } from './rig/start-rig.ts';
import { strike } from './strike.ts';

// npm run test:faults:large -- --lines 10000000 --seed 1
// One batch under one ID, with the settings of a real installation, while processes are killed at random moments. Reports
// whether cost and memory stay flat, and checks every line of the result.
const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '10000000' },
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    /** The mean time between two faults. */
    'every-seconds': { type: 'string', default: '60' },
  },
});
const lines = Number(values.lines);
const random = createRandom(Number(values.seed));
const everyMs = Number(values['every-seconds']) * 1_000;

const chooseFault = (): Fault => {
  const worker = random.pick([0, 1] as const);
  const downMs = random.pick([0, 1_000, 5_000]);
  return random.pick<Fault>([
    { kind: 'kill_worker', worker, downMs },
    { kind: 'kill_worker', worker, downMs },
    { kind: 'stop_worker', worker, downMs },
    { kind: 'kill_api', downMs },
    { kind: 'kill_postgres', downMs },
    { kind: 'end_sessions', forMs: 1_000 },
    { kind: 'kill_everything', downMs },
  ]);
};

/** Writes the requests with the `custom_id`s 1 to `lines` to a file. All have the same `user`, so that calls are counted together. */
async function writeRequests(file: string, user: string): Promise<void> {
  const out = createWriteStream(file);
  const requestsOfPiece = 10_000;
  for (let first = 1; first <= lines; first += requestsOfPiece) {
    const count = Math.min(requestsOfPiece, lines - first + 1);
    const requests = Array.from({ length: count }, (_request, index) => {
      const line = first + index;
      const messages = [{ role: 'user', content: `Say ${line}.` }];
      const body = { model: '@simulator/sim-small', user, messages };
      return `${JSON.stringify({ custom_id: String(line), method: 'POST', url: '/v1/chat/completions', body })}\n`;
    });
    if (!out.write(requests.join(''))) await once(out, 'drain');
  }
  out.end();
  await once(out, 'finish');
}

async function createBatch(rig: Rig, file: string, name: string): Promise<string> {
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', await openAsBlob(file), `${name}.jsonl`);
  const headers = { authorization: `Bearer ${rig.key}` };
  const uploaded = await fetch(`${rig.baseUrl}/files`, { method: 'POST', body: form, headers });
  if (!uploaded.ok) throw new Error(`the upload answered ${uploaded.status}: ${await uploaded.text()}`);
  const { id: inputFileId } = (await uploaded.json()) as { id: string };
  const { id } = await rig.client.createBatch(
    { input_file_id: inputFileId, endpoint: '/v1/chat/completions', completion_window: '24h' },
    { idempotencyKey: name, ownKey: false },
  );
  return id;
}

/** Processor seconds and resident bytes of what runs now; zero for a process that is down. */
async function measure(rig: Rig): Promise<{ worker: number; postgres: number; api: number; mebibytes: string }> {
  const usage = async (pid: number | undefined) => (pid === undefined ? null : await readUsage(pid).catch(() => null));
  const [api, ...workers] = await Promise.all([rig.api, ...rig.workers].map((process) => usage(process.pid())));
  const mebibytes = [api, ...workers].map((used) => Math.round((used?.residentPeakBytes ?? 0) / 1_048_576)).join(' ');
  const worker = workers.reduce((sum, used) => sum + (used?.cpuSeconds ?? 0), 0);
  const postgres = await readFamilyCpuSeconds(rig.postgres.pid()).catch(() => 0);
  return { worker, postgres, api: api?.cpuSeconds ?? 0, mebibytes };
}

/** Strikes until the batch ends, and prints its progress every ten seconds, with the peaks of memory of API and workers. */
async function follow(rig: Rig, id: string): Promise<OpenAiBatch> {
  let strikeAtMs = performance.now() + everyMs * random.next() * 2;
  let striking: Promise<void> = Promise.resolve();
  let before = { ...(await measure(rig)), done: 0, atMs: performance.now() };
  for (;;) {
    const batch = await rig.client.retrieveBatch(id);
    if (isTerminal(batch.status)) {
      await striking;
      return batch;
    }
    const nowMs = performance.now();
    if (nowMs > strikeAtMs) {
      const fault = chooseFault();
      console.log(`  ${fault.kind}${'worker' in fault ? ` ${fault.worker}` : ''}`);
      striking = striking.then(() => strike(rig, { hurry: false }, fault, {}, () => {}));
      strikeAtMs = nowMs + everyMs * random.next() * 2;
    }
    if (nowMs - before.atMs >= 10_000) {
      const now = {
        ...(await measure(rig)),
        done: batch.request_counts.completed + batch.request_counts.failed,
        atMs: nowMs,
      };
      const settled = now.done - before.done;
      const perLine = (what: 'worker' | 'postgres'): string =>
        now[what] < before[what] || settled === 0 ? '-' : `${Math.round(((now[what] - before[what]) / settled) * 1e6)}`;
      const rate = Math.round((settled * 1_000) / (now.atMs - before.atMs));
      console.log(
        `${batch.status} ${now.done} (${rate}/s), µs a line: worker ${perLine('worker')}, Postgres ${perLine('postgres')}; MB: ${now.mebibytes}`,
      );
      before = now;
    }
    await sleep(500);
  }
}

async function content(rig: Rig, fileId: string): Promise<Readable> {
  const answer = await fetch(`${rig.baseUrl}/files/${fileId}/content`, {
    headers: { authorization: `Bearer ${rig.key}` },
  });
  if (!answer.ok || answer.body === null) throw new Error(`the content of ${fileId} answered ${answer.status}`);
  return Readable.fromWeb(answer.body);
}

/** The output has every `custom_id` once, in the order of the input, and is the file that the log names. */
async function checkOutput(file: string, expectedHash: string | null): Promise<string[]> {
  let line = 0;
  for await (const text of createInterface({ input: createReadStream(file), crlfDelay: Number.POSITIVE_INFINITY })) {
    line += 1;
    const { custom_id: id, response } = JSON.parse(text) as { custom_id: string; response: { status_code: number } };
    if (id !== String(line)) return [`line ${line} of the output is the result of ${id}`];
    if (response.status_code !== 200) return [`line ${line} of the output has status ${response.status_code}`];
  }
  const hash = createHash('sha256');
  for await (const piece of createReadStream(file)) hash.update(piece as Buffer);
  return [
    ...(line === lines ? [] : [`the output has ${line} of ${lines} lines`]),
    ...(hash.digest('hex') === expectedHash ? [] : ['the output file is not the one that the log names']),
  ];
}

async function* eventsOf(rig: Rig, id: string): AsyncGenerator<{ version: number; event: BatchEvent }> {
  for (let after = 0; ;) {
    const page = await readStream(rig.db, id, after);
    for (const { type, data, streamVersion } of page)
      yield { version: streamVersion, event: { type, data } as BatchEvent };
    if (page.length === 0) return;
    after = page.at(-1)?.streamVersion ?? after;
  }
}

async function* settles(rig: Rig, id: string): AsyncGenerator<SettledEvent> {
  for await (const { version, event } of eventsOf(rig, id))
    if (event.type === 'batch.lines_settled') yield { version, data: event.data };
}

async function check(rig: Rig, batch: OpenAiBatch, name: string): Promise<string[]> {
  const { id, status, request_counts: counts, output_file_id: outputId, error_file_id: errorId } = batch;
  if (status !== 'completed' || counts.completed !== lines || outputId === null || errorId !== null)
    return [`it ended as ${status} with ${JSON.stringify(counts)}`];
  const output = path.join(rig.folder, 'output.jsonl');
  const out = createWriteStream(output);
  (await content(rig, outputId)).pipe(out);
  await once(out, 'finish');
  let redelivered = 0;
  let outputHash: string | null = null;
  for await (const { event } of eventsOf(rig, id)) {
    if (event.type === 'batch.chunk_redelivered') redelivered += event.data.unsettled;
    if (event.type === 'batch.completed') outputHash = event.data.output_sha256;
  }
  const calls = (await rig.calls())[name] ?? 0;
  console.log(`${calls - lines} calls were repeated, ${redelivered} lines were redelivered`);
  const { violations } = await compareResults({
    batch: { id, total: lines, output_file_id: outputId, error_file_id: null },
    events: settles(rig, id),
    readFile: async () => createReadStream(output),
  });
  return [
    ...violations,
    ...(await checkOutput(output, outputHash)),
    ...(calls < lines || calls > lines + redelivered ? [`${calls} calls for ${lines} lines`] : []),
    ...(await checkResidue(rig, id)),
    ...rig.takeCrashes(),
  ];
}

const rig = await startRig();
process.once('SIGINT', () => void rig.stop({ keepFolder: false }).then(() => process.exit(130)));
console.log(`seed ${values.seed}, ${lines} lines, in ${rig.folder}`);
const name = randomUUID();
const input = path.join(rig.folder, 'input.jsonl');
await writeRequests(input, name);
const startedMs = performance.now();
const id = await createBatch(rig, input, name);
await rm(input);
console.log(`created after ${Math.round((performance.now() - startedMs) / 1_000)} s`);
const batch = await follow(rig, id);
console.log(`${batch.status} after ${Math.round((performance.now() - startedMs) / 1_000)} s`);
const violations = await check(rig, batch, name);
for (const violation of violations) console.log(`violated: ${violation}`);
await rig.stop({ keepFolder: violations.length > 0 });
console.log(violations.length === 0 ? 'ok' : `logs and data are kept in ${rig.folder}`);
process.exitCode = violations.length > 0 ? 1 : 0;
