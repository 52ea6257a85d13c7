import { execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { promisify } from 'node:util';
import { expect, onTestFinished, test, vi } from 'vitest';
import type { BlobStore } from './blob-store.ts';
import { createDiskBlobStore } from './disk-blob-store.ts';

async function makeFolder(): Promise<string> {
  return mkdtemp(join(tmpdir(), 'sluice-blobs-'));
}

test('processes that make a store at the same moment agree on its id', async () => {
  const folder = await makeFolder();
  onTestFinished(() => rm(folder, { recursive: true }));
  const stores = await Promise.all(Array.from({ length: 16 }, () => createDiskBlobStore({ folder })));
  expect(new Set(await Promise.all(stores.map((store) => store.storeId()))).size).toBe(1);
  expect(await readdir(folder)).toEqual(['store-id']);
});

test('a new store is created by the first request for its ID, not by opening it', async () => {
  const parent = await makeFolder();
  onTestFinished(() => rm(parent, { recursive: true }));
  const folder = join(parent, 'blobs');
  const [first, second] = [await createDiskBlobStore({ folder }), await createDiskBlobStore({ folder })];
  expect(await readdir(parent)).toEqual([]);
  const id = await first.storeId();
  expect([await second.findId(), await second.storeId()]).toEqual([id, id]);
});

async function fileNames(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile() && entry.name !== 'store-id').map((entry) => entry.name);
}

test('a process whose clock is days ahead sweeps nothing that was just written', async () => {
  const folder = await makeFolder();
  onTestFinished(() => rm(folder, { recursive: true }));
  const store = await createDiskBlobStore({ folder });
  await store.put(Readable.from([Buffer.from('new')]));
  const ahead = Date.now() + 3 * 86_400_000;
  const clock = vi.spyOn(Date, 'now').mockImplementation(() => ahead);
  onTestFinished(() => clock.mockRestore());
  expect(await store.sweep({ olderThanMs: 86_400_000, findReferenced: nothingReferenced })).toMatchObject({
    blobsRemoved: 0,
  });
  expect(await fileNames(folder)).toHaveLength(1);
});

const nothingReferenced = async () => new Set<string>();
const writeForEver = `
  import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
  const store = await createDiskBlobStore({ folder: process.argv[1] });
  const writer = await store.openWriter();
  for (let bytes = 0; ; bytes += 100_000) {
    await writer.write(Buffer.alloc(100_000));
    if (bytes === 1_000_000) process.stdout.write('writing');
  }`;

test('a writer killed in the middle leaves no blob, and the sweeper takes its remains', async () => {
  const folder = await makeFolder();
  onTestFinished(() => rm(folder, { recursive: true }));
  const child = spawn(process.execPath, ['--input-type=module', '-e', writeForEver, folder], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  child.kill('SIGKILL');
  await once(child, 'exit');

  const store = await createDiskBlobStore({ folder });
  expect(await Readable.from(store.list()).toArray()).toEqual([]);
  expect(await fileNames(folder)).toEqual([expect.stringMatching(/^[0-9a-f]{32}\.partial$/)]);
  expect(await store.sweep({ olderThanMs: 86_400_000, findReferenced: nothingReferenced })).toEqual({
    blobsRemoved: 0,
    partialsRemoved: 0,
  });
  expect(await store.sweep({ olderThanMs: -1_000, findReferenced: nothingReferenced })).toEqual({
    blobsRemoved: 0,
    partialsRemoved: 1,
  });
  expect(await fileNames(folder)).toEqual([]);
});

const fillUp = `
  import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
  const store = await createDiskBlobStore({ folder: process.argv[1] });
  const writer = await store.openWriter();
  try { for (let n = 0; n < 50; n += 1) await writer.write(Buffer.alloc(100_000)); await writer.commit(); console.log('stored'); }
  catch (error) { console.log(error.kind, error.cause?.code); }`;

test('a file-size limit is storage_full and leaves nothing behind', async () => {
  const folder = await makeFolder();
  onTestFinished(() => rm(folder, { recursive: true }));
  await createDiskBlobStore({ folder });
  const command = `ulimit -f 1000; exec "$0" --input-type=module -e "$1" "$2"`;
  const { stdout } = await promisify(execFile)('/bin/sh', ['-c', command, process.execPath, fillUp, folder]);
  expect(stdout).toBe('storage_full EFBIG\n');
  expect(await fileNames(folder)).toEqual([]);
});

const [mountCommand, unmountCommand] = ['mount', 'umount'] as const;

/** Turns the folder into a file system of 2 MiB; false if this process has no right to mount one. */
function mountSmall(folder: string): boolean {
  try {
    execFileSync(mountCommand, ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', folder], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

test('a full disk is storage_full, leaves nothing behind, and stops being full when space returns', async (context) => {
  const folder = await makeFolder();
  const isMounted = mountSmall(folder);
  onTestFinished(async () => {
    if (isMounted) execFileSync(unmountCommand, [folder]);
    await rm(folder, { recursive: true });
  });
  if (!isMounted) context.skip('mounting a small file system needs root');

  const store: BlobStore = await createDiskBlobStore({ folder });
  async function* megabytes(count: number): AsyncGenerator<Buffer> {
    for (let index = 0; index < count * 10; index += 1) yield Buffer.alloc(100_000, index);
  }
  const first = await store.put(megabytes(1));
  await expect(store.put(megabytes(3))).rejects.toMatchObject({ kind: 'storage_full', code: 'storage_full' });
  expect(await fileNames(folder)).toEqual([first.blob]);
  await store.remove(first.blob);
  expect(await store.put(megabytes(1))).toMatchObject({ sizeBytes: 1_000_000, sha256: first.sha256 });
});

test('what leaves a reserve is refused where there is less than that, and results are written all the same', async () => {
  const folder = await makeFolder();
  onTestFinished(() => rm(folder, { recursive: true }));
  const store = await createDiskBlobStore({ folder, reservedBytes: Number.MAX_SAFE_INTEGER });
  const full = { kind: 'storage_full', code: 'storage_full' };
  await expect(store.put(Readable.from([Buffer.from('x')]), { leavesReserve: true })).rejects.toMatchObject(full);
  expect(await store.put(Readable.from([Buffer.from('x')]))).toMatchObject({ sizeBytes: 1 });
});

test.each(['is missing', 'is an empty mount point', 'is another volume'])(
  'while the folder %s, blobs are unavailable and not lost, and nothing is written below it',
  async (what) => {
    const parent = await mkdtemp(join(tmpdir(), 'sluice-unmounted-'));
    const folder = join(parent, 'blobs');
    const store = await createDiskBlobStore({ folder });
    const { blob } = await store.put(Readable.from([Buffer.from('kept')]));
    await rename(folder, join(parent, 'away'));
    if (what !== 'is missing') await mkdir(folder);
    if (what === 'is another volume') await createDiskBlobStore({ folder });
    const before = await readdir(parent, { recursive: true });
    const unavailable = { kind: 'unavailable', code: 'storage_unavailable' };
    await expect(store.put(Readable.from([Buffer.from('new')]))).rejects.toMatchObject(unavailable);
    await expect(store.readRange(blob, 0, 4)).rejects.toMatchObject(unavailable);
    await expect(store.read(blob)).rejects.toMatchObject(unavailable);
    await expect(store.sizeOf(blob)).rejects.toMatchObject(unavailable);
    const sweeping = store.sweep({ olderThanMs: 0, findReferenced: () => Promise.resolve(new Set<string>()) });
    await expect(sweeping).rejects.toMatchObject(unavailable);
    expect(await readdir(parent, { recursive: true })).toEqual(before);
    await rm(folder, { recursive: true, force: true });
    await rename(join(parent, 'away'), folder);
    expect((await store.readRange(blob, 0, 4)).toString()).toBe('kept');
    await rm(parent, { recursive: true });
  },
);
