import { execFile } from 'node:child_process';
import { createSecretKey } from 'node:crypto';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { exportLog } from '#apps/cli/audit/export-log.ts';
import { proveEvent } from '#apps/cli/audit/prove-event.ts';
import { proveLine } from '#apps/cli/audit/prove-line.ts';
import { finaliseBatch } from '#libs/batches/results/finalise-batch.ts';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createFiles } from '#libs/files/files.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { createRunningRoot, hashLeaf } from '#libs/seal/merkle-tree.ts';
import { sealNext } from '#libs/seal/seal-log.ts';
import { verifierText } from '#libs/seal/signed-note.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { untilClosed } from '../event-log/streams.ts';
import {
  createRunningBatch,
  follow,
  lineResult,
  openSettler,
  readBatch,
  readEvents,
  silent,
  useBatchEngine,
} from './running-batch.ts';

// Proofs of lines of a batch that has ended, and of its events, with the program that auditors use.

const database = useTestDatabase();
const engine = useBatchEngine(database);
const keys = createAuditKeys([{ id: '', key: createSecretKey(Buffer.alloc(32, 5)) }], undefined);
const key = verifierText(keys('test/log')[0] as never);
const program = path.resolve(import.meta.dirname, '../../../apps/audit-verify/audit-verify.mjs');

const lines = 70;
const metadata = { actor: { type: 'system' as const, id: 'test' } };
let root: string;
let blobs: BlobStore;
let folder: BlobFolder;
let id: string;
const file = (name: string): string => path.join(root, name);
const deps = () => ({ db: database.db, folder, keys, blobs });

const requests = Array.from({ length: lines }, (_line, index) => `{"custom_id":"line-${index + 1}","body":{}}`);

beforeAll(async () => {
  root = await mkdtemp(path.join(tmpdir(), 'sluice-line-proofs-'));
  blobs = await createDiskBlobStore({ folder: file('blobs') });
  folder = blobs.folder('audit');
  const files = createFiles({ db: database.db, eventLog: engine.eventLog, blobs });
  const record = async (fileId: string, name: string, content: string): Promise<void> => {
    const blob = await blobs.put(Readable.from([Buffer.from(content)]));
    const command = { workspaceId: 'ws_1', streams: [fileId], metadata };
    const row = { purpose: 'batch', filename: name, blob, expiresAfterSeconds: null };
    await engine.eventLog.transact(command, (unit) => files.record(unit, fileId, row));
  };
  // A blank line is not a request.
  const input = [...requests.slice(0, 5), ' ', ...requests.slice(5)].join('\n');
  await record('file-input', 'in.jsonl', input);
  await writeFile(file('in.jsonl'), input);
  const inputRoot = createRunningRoot();
  for (const request of requests) inputRoot.add(hashLeaf(Buffer.from(request)));
  id = await createRunningBatch(database, engine, { lines, inputRoot: Buffer.from(inputRoot.root()).toString('hex') });
  const settler = openSettler(engine, id);
  for (let line = 1; line <= lines; line += 1) {
    settler.add(lineResult(id, line, line % 10 === 0 ? { status: 500, failure: { code: 'x', message: null } } : {}));
    if (line % 20 === 0) await settler.flush();
  }
  await settler.flush();
  await finaliseBatch(
    {
      db: database.db,
      ...follow(engine),
      eventLog: engine.eventLog,
      blobs,
      inputBlob: () => Promise.reject(new Error('no line lacks a result')),
      async recordFile(unit, { id: fileId, filename, blob, expiresAfterSeconds }) {
        await files.record(unit, fileId, { purpose: 'batch_output', filename, blob, expiresAfterSeconds });
        const kind = filename.includes('_output') ? 'out.jsonl' : 'err.jsonl';
        await writeFile(file(kind), await blobs.readRange(blob.blob, 0, blob.sizeBytes));
      },
      logger: silent,
    },
    await readBatch(database, id),
    new AbortController().signal,
  );
  await untilClosed(database.db);
  const seal = { db: database.db, folder, keys, name: async () => 'test/log', publishes: false, logger: silent };
  while ((await sealNext(seal, 'worker')) === 'full');
});
afterAll(() => rm(root, { recursive: true, force: true }));

const verify = async (...args: string[]): Promise<{ stdout: string; stderr: string }> =>
  await new Promise((resolve) => {
    const options = { cwd: root, maxBuffer: 64 * 1_048_576 };
    execFile(process.execPath, [program, ...args], options, (_error, stdout, stderr) => resolve({ stdout, stderr }));
  });

test('a line is proved by its number and by its custom_id, with its request and its result', async () => {
  const proved = { line: 17, result: 'whole', request: 'whole' };
  expect(await proveLine(deps(), { batchId: id, line: 17, customId: null, out: file('by-number') })).toEqual(proved);
  expect(await proveLine(deps(), { batchId: id, line: null, customId: 'line-17', out: file('by-id') })).toEqual(proved);
  expect(await readFile(file('by-id'))).toEqual(await readFile(file('by-number')));
  const { stdout, stderr } = await verify('by-number', '--key', key);
  expect(stderr).toBe('');
  expect(stdout).toContain(`OK: line 17 of ${id} (event `);
  expect(stdout).toContain(`The input: ${requests[16]}\n`);
  expect(stdout).toMatch(/The result: \{"id":"batch_req_\w+","custom_id":"line-17",.*"text":"yes"/);
});

test('every line has a proof', async () => {
  const names: string[] = [];
  for (let line = 1; line <= lines; line += 3) {
    names.push(`line-${line}`);
    await proveLine(deps(), { batchId: id, line, customId: null, out: file(`line-${line}`) });
  }
  const { stdout, stderr } = await verify(...names, '--key', key);
  expect(stderr).toBe('');
  expect(stdout.match(/: OK: line/g)).toHaveLength(names.length);
});

test('each changed byte of a proof is refused', async () => {
  await proveLine(deps(), { batchId: id, line: 30, customId: null, out: file('line') });
  const [{ event_id: eventId } = { event_id: '' }] = await database.db
    .selectFrom('event')
    .select('event_id')
    .where('stream_id', '=', id)
    .where('type', '=', 'batch.validated')
    .execute();
  await proveEvent(deps(), { eventId, out: file('event') });
  for (const source of ['line', 'event']) {
    expect((await verify(source, '--key', key)).stderr).toBe('');
    const bytes = await readFile(file(source));
    await mkdir(file(`${source}s`));
    const names = Array.from(bytes, (_byte, at) => `${source}s/${at}`);
    for (const [at, name] of names.entries()) {
      const changed = Buffer.from(bytes);
      // Another bit from byte to byte; the one of upper and lower case is the sixth.
      changed[at] = (changed[at] ?? 0) ^ (1 << (at % 7));
      await writeFile(file(name), changed);
    }
    const { stdout, stderr } = await verify(...names, '--key', key);
    expect(stdout).toBe('');
    expect(stderr.match(/^NOT OK: /gm)).toHaveLength(names.length);
  }
});

test('an export shows that the files of a batch have the roots of its events', async () => {
  const out = file('export');
  await exportLog(deps(), { out, from: null, to: null, workspaceId: null, onProgress: () => {} });
  const results = ['--output', 'out.jsonl', '--error', 'err.jsonl'];
  const { stdout, stderr } = await verify('export', '--batch', id, '--input', 'in.jsonl', ...results);
  expect(stderr).toBe('');
  expect(stdout).toContain(`OK: in.jsonl has the ${lines} requests of ${id}.`);
  expect(stdout).toContain(`OK: the result files of ${id} have the results of ${lines} settled lines.`);

  const problem = async (name: string, edit: (text: string) => string): Promise<string> => {
    const before = await readFile(file(name), 'utf8');
    await writeFile(file(name), edit(before));
    const found = await verify('export', '--batch', id, '--input', 'in.jsonl', ...results);
    await writeFile(file(name), before);
    return found.stderr;
  };
  const swap = (text: string): string => {
    const [first = '', second = '', ...rest] = text.split('\n');
    return [second, first, ...rest].join('\n');
  };
  expect(await problem('in.jsonl', (text) => text.replace('line-7"', 'line-8"'))).toContain('does not have the root');
  expect(await problem('in.jsonl', swap)).toContain('in.jsonl: it does not have the root input_root');
  expect(await problem('in.jsonl', (text) => `${text}\n{}`)).toContain('it has 71 requests instead of 70');
  for (const name of ['out.jsonl', 'err.jsonl']) {
    expect(await problem(name, (text) => text.replace('yes', 'yet'))).toMatch(
      /NOT OK: .*: the 20 results from line 1 on do not have the root of event/,
    );
    expect(await problem(name, swap)).toMatch(/line \d+ is missing from the files, or not in its order/);
    expect(await problem(name, (text) => text.replace(/.*\n$/, ''))).toContain('is missing from the files');
    expect(await problem(name, (text) => `${text}{}\n`)).toContain(`${name}: it has more lines than the batch`);
  }
  const without = await verify('export', '--batch', id, '--output', 'out.jsonl');
  expect(without.stderr).toContain('--error: give every result file of the batch');
});

test('a proof reads some tiles and one event, not the log', async () => {
  const batches = await createRunningBatch(database, engine, { lines: 1 });
  expect(await readEvents(database, batches)).toHaveLength(2);
  await database.pool.query(`
    insert into event (event_id, workspace_id, stream_id, stream_version, type, schema_version, data, metadata, recorded_at)
    select gen_random_uuid(), 'ws_1', 'batch_many', number, 'batch.chunk_redelivered', 1,
      '{"attempt":1}', '{"actor":{"id":"test","type":"system"}}', date_trunc('milliseconds', clock_timestamp())
    from generate_series(1, 5000) as number`);
  await untilClosed(database.db);
  const seal = { db: database.db, folder, keys, name: async () => 'test/log', publishes: false, logger: silent };
  while ((await sealNext(seal, 'worker')) === 'full');
  const { rows } = await database.pool.query<{ id: string; index: number }>(`
    select event_id as id, row_number() over (order by epoch, transaction_id, position)::int - 1 as index from event`);
  let reads = 0;
  const counted = { ...folder, read: (name: string) => ((reads += 1), folder.read(name)) };
  const names: string[] = [];
  for (const { id: eventId, index } of rows.filter(({ index: at }) => at % 500 === 0 || at % 1_024 < 2)) {
    reads = 0;
    names.push(`event-${index}`);
    const place = await proveEvent({ ...deps(), folder: counted }, { eventId, out: file(`event-${index}`) });
    expect(place).toEqual({ tree: 1, index });
    expect(reads).toBeLessThan(12);
  }
  const { stdout, stderr } = await verify(...names, '--key', key);
  expect(stderr).toBe('');
  expect(stdout.match(/: OK: event/g)).toHaveLength(names.length);
});

test('a line is proved as far as its bytes and digests are kept', async () => {
  const prove = async (name: string, line = 17) =>
    await proveLine(deps(), { batchId: id, line, customId: null, out: file(name) });
  const shown = async (name: string): Promise<string> => (await verify(name, '--key', key)).stdout;
  // The bytes of the results are lost.
  await database.pool.query(`update batch_result set data = decode(repeat('00', length(data)), 'hex')`);
  expect(await prove('digest')).toEqual({ line: 17, result: 'digest', request: 'whole' });
  expect(await shown('digest')).toMatch(/The result is not kept, only its digest [0-9a-f]{64}\.$/m);
  // The rows of results are deleted some days after the batch. The files remain.
  await database.pool.query('delete from batch_result');
  for (const line of [17, 30, 70]) expect(await prove('files', line)).toMatchObject({ line, result: 'whole' });
  expect(await shown('files')).toContain('"custom_id":"line-70"');
  const files = createFiles({ db: database.db, eventLog: engine.eventLog, blobs });
  const { output_file_id: output, error_file_id: error } = await readBatch(database, id);
  for (const fileId of ['file-input', output, error]) await files.remove('ws_1', fileId ?? '', metadata);
  expect(await prove('neither')).toEqual({ line: 17, result: 'none', request: 'none' });
  expect(await shown('neither')).toContain('The result is not proved, because its digest is not kept.');
  const byId = proveLine(deps(), { batchId: id, line: null, customId: 'line-17', out: file('neither') });
  await expect(byId).rejects.toThrow('No line has the custom_id line-17.');
  await expect(prove('none', lines + 1)).rejects.toThrow(`The batch has no line ${lines + 1}.`);
});
