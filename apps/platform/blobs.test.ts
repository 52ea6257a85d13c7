import { mkdir, mkdtemp, readdir, rename, rm, rmdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createRowFile } from '#libs/request-log/write/row-file.ts';
import { openBlobs, rowDisk } from './blobs.ts';

test('files in S3 need a memory budget that has room for their writers', async () => {
  const config = {
    SLUICE_BLOBS: 's3://bucket/prefix',
    SLUICE_DATA_DIR: '.data',
    SLUICE_S3_ENDPOINT: undefined,
    SLUICE_S3_REGION: 'us-east-1',
    SLUICE_S3_PATH_STYLE: false,
  };
  const memory = createMemoryBudget(67_108_863);
  await expect(openBlobs(config, { memory })).rejects.toThrow('SLUICE_MEMORY_MAX must be at least 64MiB');
});

test('rows of the request log are not written in the place of an unavailable volume', async () => {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'sluice-rows-'));
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }));
  const config = {
    SLUICE_BLOBS: undefined,
    SLUICE_DATA_DIR: dataDir,
    SLUICE_S3_ENDPOINT: undefined,
    SLUICE_S3_REGION: 'us-east-1',
    SLUICE_S3_PATH_STYLE: false,
  };
  const blobs = await openBlobs(config);
  await blobs.storeId();
  const logger = createLogger({ name: 'test', level: 'silent' });
  const file = createRowFile({ ...rowDisk(config, blobs), bytesMax: 1_000, processId: 'process', logger });
  const rows = [{ copyData: Buffer.from('a row'), count: 1 }] as unknown as Parameters<typeof file.append>[0];
  const [mounted, away] = [path.join(dataDir, 'blobs'), path.join(dataDir, 'away')];
  await rename(mounted, away);
  await mkdir(mounted);
  expect(await file.append(rows)).toBe(0);
  expect(await readdir(mounted)).toEqual([]);
  await rmdir(mounted);
  expect(await file.append(rows)).toBe(0);
  await rename(away, mounted);
  expect(await file.append(rows)).toBe(1);
  expect(await readdir(path.join(mounted, 'request-log'))).toEqual(['process.rows']);
  await file.close();
});
