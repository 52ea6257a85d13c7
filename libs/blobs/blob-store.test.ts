import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { missingS3, startS3, type S3Kind } from '#test/s3-server.ts';
import type { BlobEntry, BlobStore } from './blob-store.ts';
import { createDiskBlobStore } from './disk-blob-store.ts';
import { createS3BlobStore } from './s3-blob-store.ts';

/** A place for blobs. Each call of `open` opens the same store again. */
type Rig = { open: () => Promise<BlobStore>; stop: () => Promise<void> };

const startDisk = async (): Promise<Rig> => {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-blobs-'));
  return { open: () => createDiskBlobStore({ folder }), stop: () => rm(folder, { recursive: true }) };
};
const startServer = (kind: S3Kind) => async (): Promise<Rig> => {
  const { options, stop } = await startS3(kind);
  return { open: () => createS3BlobStore(options), stop };
};
const kinds = [
  { name: 'a disk', missing: null, start: startDisk },
  { name: 'S3 of moto', missing: missingS3('moto'), start: startServer('moto') },
  { name: 'S3 of versitygw', missing: missingS3('versitygw'), start: startServer('versitygw') },
];

const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

test.for(kinds)('$name is available', ({ missing }, context) => {
  if (missing !== null) context.skip(missing);
});

// Tests of the contract in blob-store.ts.
describe.each(kinds.filter(({ missing }) => missing === null))('blobs on $name', ({ start }) => {
  let store: BlobStore;
  let rig: Rig;
  beforeAll(async () => {
    rig = await start();
    store = await rig.open();
  }, 60_000);
  afterAll(() => rig.stop());

  const listed = async (): Promise<BlobEntry[]> => Readable.from(store.list()).toArray();
  const isListed = async (blob: string): Promise<boolean> => (await listed()).some((entry) => entry.blob === blob);
  const put = (bytes: Buffer) => store.put(Readable.from([bytes]));

  test('a folder has files with names, which can be replaced and are not blobs', async () => {
    await store.storeId();
    const folder = store.folder('audit');
    expect(await folder.read('tile/0/000')).toBeNull();
    const paths = ['checkpoint', 'tile/0/000', 'tile/0/000.p/1', 'tile/0/000.p/2', 'tile/0/x001/000'];
    await Promise.all(paths.map((path) => folder.write(path, Buffer.from(path))));
    await folder.write('checkpoint', Buffer.from('newer'));
    await folder.removeAll('tile/0/000.p');
    await folder.removeAll('tile/9');
    const left = await Promise.all(
      paths.map(async (path) => String(await (await rig.open()).folder('audit').read(path))),
    );
    expect(left).toEqual(['newer', 'tile/0/000', 'null', 'null', 'tile/0/x001/000']);
    expect(await listed()).toEqual([]);
    await store.sweep({ olderThanMs: -1_000, findReferenced: async () => new Set() });
    expect(String(await folder.read('checkpoint'))).toBe('newer');
    for (const path of ['../x', 'a//b', '/a', 'a/..', ''])
      await expect(folder.read(path)).rejects.toThrow('not a path');
  });

  test.each([0, 1, 262_143, 262_144, 262_145, 8_388_608, 20_000_000])(
    '%i bytes come back as they went in',
    async (size) => {
      const bytes = randomBytes(size);
      const stored = await put(bytes);
      expect(stored).toEqual({ blob: expect.any(String), sizeBytes: size, sha256: sha256(bytes) });
      expect(sha256(await buffer(await store.read(stored.blob)))).toBe(stored.sha256);
      expect(await isListed(stored.blob)).toBe(true);
      expect(await store.sizeOf(stored.blob)).toBe(size);
      expect(await store.sizeOf(randomBytes(16).toString('hex'))).toBeNull();
    },
  );

  test('many small writes make one blob, and the order is kept', async () => {
    const writer = await store.openWriter();
    const lines = Array.from({ length: 20_000 }, (_, line) =>
      Buffer.from(`{"line":${line},"text":"${'x'.repeat(30)}"}\n`),
    );
    for (const line of lines) await writer.write(line);
    const stored = await writer.commit();
    const whole = Buffer.concat(lines);
    expect(stored).toMatchObject({ sizeBytes: whole.length, sha256: sha256(whole) });
    expect(whole.equals(await buffer(await store.read(stored.blob)))).toBe(true);
  });

  test('a blob is invisible until its commit, and commit may be repeated', async () => {
    const before = await listed();
    const writer = await store.openWriter();
    await writer.write(Buffer.alloc(1_000_000));
    expect(await listed()).toHaveLength(before.length);
    const stored = await writer.commit();
    expect(await writer.commit()).toEqual(stored);
    await writer.abort();
    expect(await isListed(stored.blob)).toBe(true);
  });

  test('an aborted writer leaves nothing and takes no more', async () => {
    const before = await listed();
    const writer = await store.openWriter();
    await writer.write(Buffer.alloc(1_000_000));
    await writer.abort();
    await writer.abort();
    await expect(writer.write(Buffer.alloc(1))).rejects.toThrow('closed');
    await expect(writer.commit()).rejects.toThrow('closed');
    expect(await listed()).toHaveLength(before.length);
  });

  test('ranges are read exactly, and a range past the end is an error', async () => {
    const bytes = randomBytes(100_000);
    const { blob } = await put(bytes);
    expect(bytes.subarray(70_000, 70_123).equals(await store.readRange(blob, 70_000, 123))).toBe(true);
    expect(await store.readRange(blob, 5, 0)).toHaveLength(0);
    expect(bytes.subarray(99_000).equals(await buffer(await store.read(blob, { offset: 99_000 })))).toBe(true);
    expect(bytes.subarray(10, 15).equals(await buffer(await store.read(blob, { offset: 10, length: 5 })))).toBe(true);
    expect(await buffer(await store.read(blob, { offset: 10, length: 0 }))).toHaveLength(0);
    await expect(store.readRange(blob, 99_990, 20)).rejects.toThrow('ends at byte 100000');
  });

  test.each([[[6_000_000, 5_242_880, 10]], [[6_000_000]], [[10, 6_000_000, 0]]])(
    'blobs of %j bytes are joined in their order',
    async (sizes) => {
      const contents = sizes.map((size) => randomBytes(size));
      const parts = await Promise.all(contents.map(put));
      let seenBytes = 0;
      const onBytes = (bytes: Uint8Array): void => void (seenBytes += bytes.length);
      const joined = await store.join(parts, { onBytes });
      const whole = Buffer.concat(contents);
      expect(joined).toEqual({ blob: expect.any(String), sizeBytes: whole.length, sha256: sha256(whole) });
      expect(seenBytes).toBe(whole.length);
      expect(sha256(await buffer(await store.read(joined.blob)))).toBe(joined.sha256);
    },
  );

  test('a join with a missing blob leaves nothing', async () => {
    const before = await listed();
    const missing = { blob: randomBytes(16).toString('hex'), sizeBytes: 6_000_000 };
    const part = await put(randomBytes(6_000_000));
    await expect(store.join([part, missing, part])).rejects.toMatchObject({
      kind: expect.stringMatching(/not_found|unavailable/),
    });
    await store.remove(part.blob);
    expect(await listed()).toHaveLength(before.length);
  });

  test('an unknown blob is not_found to read, nothing to remove, and a removed one is gone', async () => {
    const unknown = randomBytes(16).toString('hex');
    await expect(store.read(unknown)).rejects.toMatchObject({ kind: 'not_found' });
    await expect(store.readRange(unknown, 0, 1)).rejects.toMatchObject({ kind: 'not_found' });
    await store.remove(unknown);
    const { blob } = await put(Buffer.from('x'));
    await store.remove(blob);
    await expect(store.read(blob)).rejects.toMatchObject({ kind: 'not_found' });
    expect(await isListed(blob)).toBe(false);
  });

  test('names that no store made are refused, whatever they point at', async () => {
    for (const name of ['../../etc/passwd', '', 'store-id', `${'a'.repeat(31)}/`, 'A'.repeat(32)]) {
      await expect(store.read(name)).rejects.toThrow('not a name of a blob');
    }
  });

  test('a source over the limit is refused as it comes, not at its end', async () => {
    const before = await listed();
    let given = 0;
    async function* endless(): AsyncGenerator<Buffer> {
      for (;;) {
        given += 1;
        yield Buffer.alloc(1_000);
      }
    }
    await expect(store.put(endless(), { sizeBytesMax: 10_000 })).rejects.toMatchObject({ kind: 'payload_too_large' });
    expect(given).toBe(11);
    expect(await listed()).toHaveLength(before.length);
    expect(await store.put(Readable.from([Buffer.alloc(10_000)]), { sizeBytesMax: 10_000 })).toMatchObject({
      sizeBytes: 10_000,
    });
  });

  test('a source that fails, and a signal, leave nothing and say why', async () => {
    const before = await listed();
    async function* failing(): AsyncGenerator<Buffer> {
      yield Buffer.alloc(500_000);
      throw new Error('the source broke');
    }
    await expect(store.put(failing())).rejects.toThrow('the source broke');
    const controller = new AbortController();
    const stuck = new Readable({ read() {} });
    stuck.push(Buffer.alloc(500_000));
    const running = store.put(stuck, { signal: controller.signal });
    controller.abort(new Error('the client left'));
    await expect(running).rejects.toThrow('the client left');
    expect(stuck.destroyed).toBe(true);
    expect(await listed()).toHaveLength(before.length);
  });

  test('the sweeper removes what is old and unreferenced, and nothing else', async () => {
    const kept = await put(Buffer.from('kept'));
    const orphan = await put(Buffer.from('orphan'));
    const findReferenced = async (blobs: readonly string[]) => new Set(blobs.filter((blob) => blob === kept.blob));
    expect(await store.sweep({ olderThanMs: 3_600_000, findReferenced })).toMatchObject({ blobsRemoved: 0 });
    const total = (await listed()).length;
    expect(await store.sweep({ olderThanMs: -1_000, findReferenced })).toMatchObject({ blobsRemoved: total - 1 });
    expect(await isListed(kept.blob)).toBe(true);
    expect(await isListed(orphan.blob)).toBe(false);
  });

  test('the sweeper takes the remains of a writer that never ended', async () => {
    const abandoned = await store.openWriter();
    await abandoned.write(Buffer.alloc(9_000_000));
    const findReferenced = async (blobs: readonly string[]) => new Set(blobs);
    expect(await store.sweep({ olderThanMs: -1_000, findReferenced })).toEqual({ blobsRemoved: 0, partialsRemoved: 1 });
    await abandoned.abort();
  });

  test('the id of the store is made once, also when several open it at the same time', async () => {
    const stores = await Promise.all(Array.from({ length: 8 }, () => rig.open()));
    const ids = await Promise.all(stores.map((other) => other.storeId()));
    expect(new Set(ids)).toEqual(new Set([await store.storeId()]));
    expect(ids[0]).toMatch(/^store_[0-9a-f]{32}$/);
  });
});
