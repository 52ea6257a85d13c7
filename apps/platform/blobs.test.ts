import { expect, test } from 'vitest';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { openBlobs } from './blobs.ts';

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
