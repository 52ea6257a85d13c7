import { execFile } from 'node:child_process';
import { createSecretKey } from 'node:crypto';
import { appendFile, cp, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Manifest } from '#apps/cli/audit/describe-export.ts';
import { exportLog } from '#apps/cli/audit/export-log.ts';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createDiskBlobFolder } from '#libs/blobs/disk-blob-folder.ts';
import { startEpoch } from '#libs/event-log/epoch.ts';
import { eraseEvents, erasureType } from '#libs/event-log/erase-events.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { readStream, type PositionedEvent } from '#libs/event-log/read-events.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { formatCheckpoint } from '#libs/seal/checkpoint.ts';
import { signNote, verifierText } from '#libs/seal/signed-note.ts';
import { sealNext, type SealDeps } from '#libs/seal/seal-log.ts';
import { userCreated, userModel } from '#libs/people/users/users.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { batchCreated, chunkRedelivered, commandOn, untilClosed } from './streams.ts';

const keys = createAuditKeys([{ id: '', key: createSecretKey(Buffer.alloc(32, 5)) }], undefined);

let database: TestDatabase;
let root: string;
let deps: SealDeps;
/** The export of the whole log, and of one workspace. */
let whole: string;
let part: string;

/** The times of the three appends. */
let times: string[];

beforeAll(async () => {
  database = await createTestDatabase();
  root = await mkdtemp(path.join(tmpdir(), 'sluice-export-'));
  const folder = createDiskBlobFolder(path.join(root, 'audit'));
  const logger = createLogger({ name: 'test', level: 'silent' });
  deps = { db: database.db, folder, keys, name: async () => 'test/log', publishes: false, logger };
  await append('ws_1', 'batch_1', 150);
  await append('ws_2', 'batch_2', 120);
  await append('ws_1', 'batch_1', 50);
  await seal();
  whole = await write('whole');
  part = await write('part', { workspaceId: 'ws_1' });
  const all = await readEvents(whole);
  times = [0, 150, 270].map((line) => String(all[line]?.event['recorded_at']));
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

async function seal(): Promise<void> {
  await untilClosed(database.db);
  while ((await sealNext(deps, 'worker')) === 'full');
}

type Selection = { workspaceId?: string; from?: string; to?: string };

async function write(name: string, { workspaceId, from, to }: Selection = {}, more = {}): Promise<string> {
  const out = path.join(root, name);
  const [first, last] = [from, to].map((time) => (time === undefined ? null : new Date(time)));
  const range = { from: first ?? null, to: last ?? null, workspaceId: workspaceId ?? null };
  await exportLog(deps, { out, ...range, onProgress: () => {}, ...more });
  return out;
}

type Line = { event: Record<string, string | number>; tree: number; index: number };

const readEvents = async (folder: string): Promise<Line[]> =>
  (await readFile(path.join(folder, 'events.ndjson'), 'utf8'))
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Line);

/** All files of a folder, by path. */
async function readFolder(folder: string): Promise<Map<string, string>> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name));
  const contents = files.toSorted().map(async (file) => {
    return [path.relative(folder, file), (await readFile(file)).toString('hex')] as const;
  });
  return new Map(await Promise.all(contents));
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

test('an export that is interrupted anywhere is continued, and has the bytes of one that was not', async () => {
  for (const [source, selection] of [
    [whole, {}],
    [part, { workspaceId: 'ws_1' }],
  ] as const) {
    const name = `resumed-${path.basename(source)}`;
    const events = path.join(root, name, 'events.ndjson');
    let runs = 0;
    let isWritten = 0;
    for (let left = 1; ; left += 1, runs += 1) {
      const folder = { ...deps.folder, read: async (file: string) => await readUnlessKilled(file) };
      let reads = 0;
      const readUnlessKilled = async (file: string): Promise<Buffer | null> => {
        reads += 1;
        if (reads > left) throw new Error('killed');
        return await deps.folder.read(file);
      };
      const out = path.join(root, name);
      const range = { from: null, to: null, workspaceId: null, ...selection };
      const run = exportLog({ ...deps, folder }, { out, ...range, savedBytes: 20_000, onProgress: () => {} });
      const isDone = await run.then(
        () => true,
        (error: Error) => error.message !== 'killed',
      );
      if (isDone) break;
      const written = await readFile(events, 'utf8').catch(() => '');
      expect(written.length).toBeGreaterThanOrEqual(isWritten);
      isWritten = written.length;
      // The process was killed while it wrote a line.
      if (written !== '') await appendFile(events, '{"tree":1,');
    }
    expect(runs).toBeGreaterThan(2);
    expect(await readFolder(path.join(root, name))).toEqual(await readFolder(source));
  }
});

test('a complete export is left unchanged, and another range needs another folder', async () => {
  const before = await readFolder(part);
  await write('part', { workspaceId: 'ws_1' });
  expect(await readFolder(part)).toEqual(before);
  await expect(write('part')).rejects.toThrow('has an export of another time range or workspace');
});

const change =
  (line: number, from: string | RegExp, to: string) =>
  (lines: string[]): string[] =>
    lines.with(line, (lines[line] ?? '').replace(from, to));

const changes: Record<string, [(lines: string[]) => string[], RegExp]> = {
  'a removed event': [(lines) => lines.toSpliced(7, 1), /line 8, event .* version 9 of batch_1 follows 7/],
  'a removed end': [
    (lines) => lines.slice(0, 100),
    /events.ndjson: (?:the event of entry 100 of tree 1 is missing|it has 100 events, manifest.json says)/,
  ],
  'a removed salt': [
    change(7, /"data_salt":"[0-9a-f]+"/, '"data_salt":null'),
    /line 8, event .* the salt of its data is missing, and no erasure names it/,
  ],
  'a removed salt of the metadata': [
    change(7, /"metadata_salt":"[0-9a-f]+"/, '"metadata_salt":null,"withheld":true'),
    /line 8, event .* the salt of its metadata is missing, and no erasure names it/,
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
      expect({ members, output }).toEqual({ members, output: expect.stringMatching(/NOT OK: events.ndjson line 8/) });
    }
  }
});

test('an export that ends early is found even if its counts were adjusted', async () => {
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
  expect(await cut(0, 310, {})).toContain('NOT OK: events.ndjson: the event of entry 310 of tree 1 is missing');
  expect(await cut(5, 320, {})).toMatch(
    /NOT OK: events.ndjson line 1, event .*: the event of entry 0 of tree 1 is missing/,
  );
  expect(await cut(0, 0, {})).toContain('the event of entry 0 of tree 1 is missing');
  const to = '2126-01-01T00:00:00.000Z';
  expect(await cut(0, 310, { to })).toContain('the event of entry 310 of tree 1 is missing');
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

/** A copy of an export in which the forger has removed lines and adjusted the manifest. */
async function forge(source: string, name: string, edit: (lines: string[]) => string[], more: Partial<Manifest> = {}) {
  const copy = path.join(root, name);
  await cp(source, copy, { recursive: true });
  const file = path.join(copy, 'events.ndjson');
  const lines = edit((await readFile(file, 'utf8')).trimEnd().split('\n'));
  await writeFile(file, lines.map((line) => `${line}\n`).join(''));
  const manifest = JSON.parse(await readFile(path.join(copy, 'manifest.json'), 'utf8')) as Manifest;
  await writeFile(path.join(copy, 'manifest.json'), JSON.stringify({ ...manifest, events: lines.length, ...more }));
  return copy;
}

test('first and last events that were removed with their counts are noticed', async () => {
  const [, second = '', third = ''] = times;
  expect(second < third).toBe(true);
  const from = await write('from', { from: second });
  const to = await write('to', { to: second });
  const between = await write('between', { from: second, to: second });
  expect(await verify(from)).toContain(
    `OK: 170 events, 320 entries (tree 1 with 320 entries).\nRange: ${second} to the`,
  );
  expect(await verify(to)).toContain('OK: 270 events');
  expect(await verify(between)).toContain('OK: 120 events');
  const ofWorkspace = await write('of-workspace', { workspaceId: 'ws_1', from: second, to: second });
  expect(await verify(ofWorkspace)).toContain('OK: 0 events, 2 entries');
  const first = await write('first', { workspaceId: 'ws_1', to: second });
  expect(await verify(first)).toContain('OK: 150 events, 151 entries');
  expect(await verify(first)).not.toContain('no later event');

  const withoutFirst = (lines: string[]): string[] => lines.slice(1);
  const withoutLast = (lines: string[]): string[] => lines.slice(0, -1);
  let copies = 0;
  const forged = async (...[source, edit, more]: [string, (lines: string[]) => string[], Partial<Manifest>?]) =>
    await verify(await forge(source, `forged-${(copies += 1)}`, edit, more));
  for (const source of [whole, part, to, first]) {
    expect(await forged(source, withoutFirst)).toMatch(/NOT OK: .*(?:entry 0 of tree 1 is missing|number 2 follows 0)/);
  }
  for (const source of [whole, from, to, between])
    expect(await forged(source, withoutLast)).toMatch(/NOT OK: .*the event of entry \d+ of tree 1 is missing/);
  for (const source of [from, between])
    expect(await forged(source, withoutFirst)).toMatch(/NOT OK: .*the event of entry 150 of tree 1 is missing/);
  expect(await forged(first, withoutLast)).toContain('number 151 follows 149');
  // The neighbours are part of what is checked.
  for (const source of [to, between])
    expect(await forged(source, (lines) => lines, { after: null })).toMatch(/NOT OK: .*entry 270 of tree 1 is missing/);
  expect(await forged(from, (lines) => lines, { before: null })).toMatch(/NOT OK: .*entry 0 of tree 1 is missing/);
  expect(await forged(to, (lines) => lines, { to: third })).toContain('manifest.json, after: it is in the time range');
  expect(await forged(whole, (lines) => lines, { trees: [{ tree: 1, size: 319 }] })).toContain(
    'tree 1 has 320 entries',
  );
  // Not noticed, and said: nothing shows that an export of one workspace reaches its end.
  expect(await forged(part, withoutLast)).toContain('Nothing here shows that the workspace has no later event.');
});

test('what is shown of an erased event is proved by the record of its erasure', async () => {
  const { db } = database;
  const own = 'batch_9';
  await createEventLog(db).transact({ ...commandOn(own), workspaceId: 'ws_9' }, (unit) =>
    unit.append(batchModel, own, [batchCreated({ metadata: { owner: 'ann@example.org' } })]),
  );
  const [event] = await readStream(db, own);
  const data = { ...event?.data, metadata: { owner: '[erased]' } };
  const command = { ...commandOn('user_9'), workspaceId: 'org_default' };
  await createEventLog(db).transact(command, async (unit) => {
    const events = await eraseEvents(unit.tx, [{ ...(event as PositionedEvent), data }]);
    await unit.append(userModel, 'user_9', [userCreated({ email: 'ann@example.org', role: 'member' } as never)]);
    await unit.append(userModel, 'user_9', [{ type: erasureType, data: { reason: 'asked', events } } as never]);
  });
  await seal();
  const out = await write('erased', { workspaceId: 'ws_9' });
  expect(await verify(out)).toContain('OK: 1 events');
  expect(await verify(await write('erased-whole'))).toContain('OK: 323 events');
  const forged = await forge(out, 'forged-erasure', (lines) =>
    lines.map((line) => line.replace('"owner":"[erased]"', '"owner":"[Erased]"')),
  );
  expect(await verify(forged)).toContain('its data is not what its erasure left');
  await writeFile(path.join(out, 'erasures.ndjson'), '');
  expect(await verify(out)).toContain('the salt of its data is missing, and no erasure names it');
});

test('the export of a log that went back has all of its trees', async () => {
  const tables = ['seal', 'seal_workspace', 'seal_place', 'subscription_checkpoint'];
  const { rows } = await database.pool.query<{ last: number }>('select max(position) as last from event');
  for (const table of tables) await database.pool.query(`create table kept_${table} as select * from ${table}`);
  await append('ws_2', 'batch_2', 7);
  await seal();
  await database.tamper(
    [
      `delete from event where position > ${rows[0]?.last ?? 0}`,
      `update batch set version = version - 7 where id = 'batch_2'`,
      ...tables.flatMap((table) => [`delete from ${table}`, `insert into ${table} select * from kept_${table}`]),
    ].join(';'),
  );
  await append('ws_2', 'batch_2', 3);
  await seal();
  await append('ws_2', 'batch_2', 1);
  await seal();
  await startEpoch(database.db);
  await append('ws_1', 'batch_1', 2);
  await seal();
  const trees = await write('trees');
  const kept = 323;
  expect(await verify(trees)).toContain(
    `OK: ${kept + 6} events, ${kept + 7 + 5 + 3} entries (tree 1 with ${kept + 7} entries, tree 2 with 5 entries, tree 3 with 3 entries).`,
  );
  expect((await readEvents(trees)).slice(-6).map(({ tree, index }) => [tree, index])).toEqual([
    [2, 1],
    [2, 2],
    [2, 3],
    [2, 4],
    [3, 1],
    [3, 2],
  ]);
  const ofWorkspace = await write('trees-of-workspace', { workspaceId: 'ws_2' });
  expect(await verify(ofWorkspace)).toContain('OK: 124 events, 124 entries');
  const withoutTree = await forge(trees, 'without-tree', (lines) => lines.slice(0, -2));
  await rm(path.join(withoutTree, 'trees/3'), { recursive: true });
  expect(await verify(withoutTree)).toContain('trees/3/checkpoint: the file is missing');
  expect(await verify(await forge(trees, 'without-event', (lines) => lines.toSpliced(-4, 1)))).toContain('NOT OK');
});
