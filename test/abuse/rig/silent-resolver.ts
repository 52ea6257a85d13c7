import { spawnSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { SetUp } from '../attack.ts';

const address = '127.53.53.53';

/**
 * A name server that receives queries and never answers, and an /etc/resolv.conf that points to it, for one process in
 * its own mount namespace. Both need root: the port must be 53, because resolv.conf has no other.
 */
export async function setUpSilentResolver(folder: string): Promise<SetUp | { missing: string }> {
  if (spawnSync('unshare', ['--mount', 'true']).status !== 0) {
    return { missing: 'needs a mount namespace (unshare --mount, as root on Linux)' };
  }
  const server = createSocket('udp4');
  const bound = await new Promise<boolean>((resolve) => {
    server.once('error', () => resolve(false));
    server.bind(53, address, () => resolve(true));
  });
  if (!bound) {
    server.close();
    return { missing: `needs port 53 of ${address}` };
  }
  const file = path.join(folder, 'resolv.conf');
  await writeFile(file, `nameserver ${address}\n`);
  return {
    apiLauncher: ['unshare', '--mount', '/bin/sh', '-c', 'mount --bind "$0" /etc/resolv.conf && exec "$@"', file],
    undo: () => new Promise((resolve) => server.close(() => resolve())),
  };
}
