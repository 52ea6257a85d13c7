import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

/** The maximum of buffer bytes in a process while it reads 160 MB and retains nothing. */
async function buffersHeld(onChunk: string): Promise<number> {
  const script = `
    import { open } from 'node:fs/promises';
    import { countTransferred, limitHeapGrowth } from '#libs/kernel/heap-growth.ts';
    limitHeapGrowth();
    let most = 0;
    const zeros = await open('/dev/zero');
    for await (const chunk of zeros.createReadStream({ end: 160e6 - 1 })) {
      ${onChunk}
      most = Math.max(most, process.memoryUsage().arrayBuffers);
    }
    console.log(most);`;
  const flags = ['--max-semi-space-size=24', '--min-semi-space-size=24', '--input-type=module', '--eval', script];
  const { stdout } = await promisify(execFile)(process.execPath, flags);
  return Number(stdout);
}

test('buffers of a file that is only passed on are freed long before V8 would collect them', async () => {
  const [counted, uncounted] = await Promise.all([buffersHeld('countTransferred(chunk.length);'), buffersHeld('')]);
  expect(counted).toBeLessThan(20e6);
  expect(uncounted).toBeGreaterThan(2 * counted);
});
