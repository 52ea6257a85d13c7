import { spawnSync } from 'node:child_process';
import { mkdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import type { SetUp } from '../attack.ts';

/** A blob folder on its own file system of 2 GiB, inside a file. Mounting it needs root and a loop device. */
export async function setUpSmallDisk(folder: string): Promise<SetUp | { missing: string }> {
  const image = path.join(folder, 'small-disk.img');
  const disk = path.join(folder, 'small-disk');
  mkdirSync(disk, { recursive: true });
  const run = (command: string, ...args: string[]): boolean => spawnSync(command, args).status === 0;
  const undo = async (): Promise<void> => {
    run('umount', disk);
    rmSync(image, { force: true });
  };
  const isMounted =
    run('truncate', '--size=2G', image) &&
    run('mkfs.ext4', '-q', '-m', '0', image) &&
    run('mount', '-o', 'loop', image, disk);
  if (!isMounted) {
    await undo();
    return { missing: 'needs a file system of its own (mkfs.ext4, mount -o loop, as root on Linux)' };
  }
  return { environment: { SLUICE_BLOBS: `file:${path.join(disk, 'blobs')}` }, undo };
}
