import { execFile } from 'node:child_process';
import { createSecretKey } from 'node:crypto';
import { cp, mkdtemp, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { exportLog } from '#apps/cli/audit/export-log.ts';
import { proveEvent } from '#apps/cli/audit/prove-event.ts';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createDiskBlobFolder } from '#libs/blobs/disk-blob-folder.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { formatCheckpoint } from '#libs/seal/checkpoint.ts';
import { signNote, verifierText } from '#libs/seal/signed-note.ts';
import { sealNext, type SealDeps } from '#libs/seal/seal-log.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { batchCreated, chunkRedelivered, commandOn, untilClosed } from './streams.ts';

const keys = createAuditKeys([{ id: '', key: createSecretKey(Buffer.alloc(32, 5)) }], undefined);

let database: TestDatabase;
let root: string;
let deps: SealDeps;
/** The export of the whole log, and of one workspace. */
let whole: string;
let part: string;

beforeAll(async () => {
  database = await createTestDatabase();
  root = await mkdtemp(path.join(tmpdir(), 'sluice-export-'));
  const folder = createDiskBlobFolder(path.join(root, 'audit'));
  const logger = createLogger({ name: 'test', level: 'silent' });
  deps = { db: database.db, folder, keys, name: async () => 'test/log', publishes: false, logger };
  await append('ws_1', 'batch_1', 150);
  await append('ws_2', 'batch_2', 120);
  await append('ws_1', 'batch_1', 50);
  await untilClosed(database.db);
  while ((await sealNext(deps, 'worker')) === 'full');
  whole = await write('whole');
  part = await write('part', 'ws_1');
});
afterAll(async () => {
  await database.drop();
  await rm(root, { recursive: true, force: true });
});

async function append(workspaceId: string, id: string, count: number): Promise<void> {
  await createEventLog(database.db).transact({ ...commandOn(id), workspaceId }, async (unit) => {
    const version = (await unit.load(batchModel, id))?.version ?? 0;
    const events = Array.from({ length: count }, (_event, index) =>
      version + index === 0 ? batchCreated() : chunkRedelivered(version + index),
    );
    await unit.append(batchModel, id, events);
  });
}

async function write(name: string, workspaceId: string | null = null): Promise<string> {
  const out = path.join(root, name);
  await exportLog(deps, { out, from: null, to: null, workspaceId, onProgress: () => {} });
  return out;
}

/** What the program prints that is in the export. */
const verify = async (folder: string, ...args: string[]): Promise<string> =>
  await new Promise((resolve) => {
    execFile(process.execPath, [path.join(whole, 'audit-verify.mjs'), folder, ...args], (_error, stdout, stderr) => {
      resolve(stdout + stderr);
    });
  });

test('an export of the whole log, and of one workspace, is verified', async () => {
  expect(await verify(whole)).toContain('OK: 320 events, 320 entries (tree 1 with 320 entries).');
  expect(await verify(part)).toContain('OK: 200 events, 200 entries');
  const text = await readFile(path.join(part, 'events.ndjson'), 'utf8');
  expect(text).not.toContain('ws_2');
});

test('a repeated export has the same bytes, although the log has grown', async () => {
  const before = await readFile(path.join(part, 'events.ndjson'));
  await write('part', 'ws_1');
  expect((await readFile(path.join(part, 'events.ndjson'))).equals(before)).toBe(true);
});

const change =
  (line: number, from: string | RegExp, to: string) =>
  (lines: string[]): string[] =>
    lines.with(line, (lines[line] ?? '').replace(from, to));

const changes: Record<string, [(lines: string[]) => string[], RegExp]> = {
  'a removed event': [(lines) => lines.toSpliced(7, 1), /line 8, event .* version 9 of batch_1 follows 7/],
  'a removed end': [
    (lines) => lines.slice(0, 100),
    /events.ndjson: (?:it has 100 events, manifest.json says|the event of entry 100 )/,
  ],
  'swapped events': [(lines) => lines.with(7, lines[8] ?? '').with(8, lines[7] ?? ''), /line 8, event .* version 9/],
  'a forged event': [
    (lines) => lines.toSpliced(7, 0, lines[7] ?? ''),
    /line 9, event .* version 8 of batch_1 follows 8/,
  ],
  'a file that is cut off': [(lines) => change(20, /.{30}$/, '')(lines.slice(0, 21)), /line 21: .* cut off/],
};

/** The members of a JSON value that have no members themselves, as paths. */
const leaves = (value: unknown, at: string[] = []): string[][] =>
  typeof value === 'object' && value !== null
    ? Object.entries(value).flatMap(([name, member]) => leaves(member, [...at, name]))
    : [at];

test('any changed member of an event is found, and so is a null', async () => {
  const copy = path.join(root, 'members');
  await cp(part, copy, { recursive: true });
  const file = path.join(copy, 'events.ndjson');
  const lines = (await readFile(file, 'utf8')).trimEnd().split('\n');
  const item = JSON.parse(lines[7] ?? '') as object;
  const paths = leaves(item).filter(([first]) => first !== 'proof');
  expect(paths.length).toBeGreaterThan(20);
  for (const members of [...paths, ['proof', '0']]) {
    for (const other of [1, null]) {
      const edited = structuredClone(item) as Record<string, unknown>;
      const parent = members.slice(0, -1).reduce((value, name) => value[name] as Record<string, unknown>, edited);
      const name = members.at(-1) ?? '';
      const value = parent[name];
      parent[name] = other === null ? null : typeof value === 'number' ? value + 1 : `${String(value).slice(0, -1)}_`;
      await writeFile(file, `${lines.with(7, JSON.stringify(edited)).join('\n')}\n`);
      const output = await verify(copy);
      // Without its salt, data is not proved, and the program says so.
      const isWithheld = other === null && name.endsWith('_salt');
      expect({ members, output }).toEqual({
        members,
        output: expect.stringMatching(isWithheld ? /Parts of 1 events were withheld/ : /NOT OK: events.ndjson line 8/),
      });
    }
  }
});

test('an export that ends early is found even if its counts were adjusted, unless its range of time was too', async () => {
  const copy = path.join(root, 'ends-early');
  await cp(whole, copy, { recursive: true });
  const lines = (await readFile(path.join(copy, 'events.ndjson'), 'utf8')).trimEnd().split('\n');
  const manifest = JSON.parse(await readFile(path.join(copy, 'manifest.json'), 'utf8')) as object;
  const cut = async (from: number, to: number, range: object): Promise<string> => {
    const kept = lines.slice(from, to);
    await writeFile(path.join(copy, 'events.ndjson'), kept.map((line) => `${line}\n`).join(''));
    const adjusted = { ...manifest, ...range, events: kept.length };
    await writeFile(path.join(copy, 'manifest.json'), JSON.stringify(adjusted));
    return await verify(copy);
  };
  expect(await cut(0, 310, {})).toContain(
    'NOT OK: before the end of events.ndjson: the event of entry 310 of tree 1 is missing',
  );
  expect(await cut(5, 320, {})).toMatch(
    /NOT OK: before events.ndjson line 1, event .*: the event of entry 0 of tree 1 is missing/,
  );
  expect(await cut(0, 0, {})).toContain('the event of entry 0 of tree 1 is missing');
  expect(await cut(0, 310, { to: '2026-01-01T00:00:00.000Z' })).toContain('OK: 310 events, 320 entries');
});

test.for(['trees/1/tile/0/000', 'trees/1/tile/1/000.p/1', 'trees/1/tile/entries/001.p/64', 'trees/1/checkpoint'])(
  'a missing or shortened file is found: %s',
  async (file) => {
    const copy = path.join(root, `without-${file.replaceAll('/', '-')}`);
    await cp(whole, copy, { recursive: true });
    await truncate(path.join(copy, file), 40);
    expect(await verify(copy)).toMatch(new RegExp(`^NOT OK: ${file.replace(/^trees\/(?=1\/tile)/, '')}`));
    await rm(path.join(copy, file));
    expect(await verify(copy)).toMatch(
      new RegExp(`^NOT OK: ${file.replace(/^trees\/(?=1\/tile)/, '')}: the file is missing`),
    );
  },
);

test.for(Object.entries(changes))('%s in the events is found', async ([name, [edit, problem]]) => {
  for (const source of [whole, part]) {
    const copy = path.join(root, `${name} in ${path.basename(source)}`);
    await cp(source, copy, { recursive: true });
    const file = path.join(copy, 'events.ndjson');
    const lines = (await readFile(file, 'utf8')).trimEnd().split('\n');
    await writeFile(
      file,
      edit(lines)
        .map((line) => `${line}\n`)
        .join(''),
    );
    expect(await verify(copy)).toMatch(problem);
  }
});

test.for([
  ['trees/1/tile/0/000', /tile\/0\/000: its hash 3 is not that of the entries/],
  ['trees/1/tile/1/000.p/1', /tile\/1\/000.p\/1: its hash 0/],
  ['trees/1/tile/entries/000', /entries\/000, entry 0: |line 1, event/],
  ['trees/1/checkpoint', /trees\/1\/checkpoint: no signature by a given key is right/],
] as const)('a changed byte in %s is found', async ([file, problem]) => {
  const copy = path.join(root, file.replaceAll('/', '-'));
  await cp(whole, copy, { recursive: true });
  const bytes = await readFile(path.join(copy, file));
  const at = file.includes('tile/1') ? 0 : file.includes('tile/0') ? 100 : 11;
  bytes[at] = (bytes[at] ?? 0) ^ 1;
  await writeFile(path.join(copy, file), bytes);
  expect(await verify(copy)).toMatch(problem);
});

test('a log that was forked is refused with an earlier checkpoint, and by another key', async () => {
  const forked = signNote(
    formatCheckpoint({ origin: 'test/log', size: 100, root: Buffer.alloc(32, 1) }),
    keys('test/log'),
  );
  const file = path.join(root, 'earlier');
  await writeFile(file, forked);
  expect(await verify(whole, '--checkpoint', file)).toContain('they do not have the root of the earlier checkpoint');
  expect(await verify(whole, '--checkpoint', path.join(whole, 'trees/1/checkpoint'))).toContain('OK');
  const [stranger] = createAuditKeys([{ id: '', key: createSecretKey(Buffer.alloc(32, 6)) }], undefined)('test/log');
  expect(await verify(whole, '--key', verifierText(stranger as never))).toContain(
    'no signature by a given key is right',
  );
});

test('the proof of an event is verified, and a changed one is refused', async () => {
  const [, , line = ''] = (await readFile(path.join(part, 'events.ndjson'), 'utf8')).split('\n');
  const { event } = JSON.parse(line) as { event: { event_id: string } };
  const file = path.join(root, 'proof');
  expect(await proveEvent(deps, { eventId: event.event_id, out: file })).toEqual({ tree: 1, index: 2 });
  const [key] = (await readFile(path.join(whole, 'key.txt'), 'utf8')).split('\n');
  expect(await verify(file, '--key', key ?? '')).toContain(`OK: event ${event.event_id} is entry 2 of tree 1.`);
  const proof = await readFile(file, 'utf8');
  const changed = proof.replace(/^extra (.+)$/m, (_line, extra: string) => {
    const text = Buffer.from(extra, 'base64').toString().replace('"unsettled":2', '"unsettled":3');
    return `extra ${Buffer.from(text).toString('base64')}`;
  });
  await writeFile(file, changed);
  expect(await verify(file, '--key', key ?? '')).toContain('its data does not have the digest');
  await writeFile(file, proof.replace('index 2', 'index 3'));
  expect(await verify(file, '--key', key ?? '')).toContain('its proof does not give the root');
  await expect(proveEvent(deps, { eventId: 'x', out: file })).rejects.toThrow('No sealed event has the ID x.');
});
