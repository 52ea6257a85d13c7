import { createServer } from 'node:net';
import { sleep } from '#libs/kernel/sleep.ts';

/** Returns `port` if it is free, or any free port for 0. Throws the system's error: EADDRINUSE, EACCES, EADDRNOTAVAIL. */
function probePort(port: number, host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen({ port, host, exclusive: true }, () => {
      const address = server.address();
      const found = typeof address === 'object' && address !== null ? address.port : port;
      server.close(() => resolve(found));
    });
  });
}

/** Like `probePort`, but waits up to `waitMs` for a port to become free. */
export async function awaitPort(port: number, host: string, waitMs: number): Promise<number> {
  const deadline = performance.now() + waitMs;
  for (;;) {
    try {
      return await probePort(port, host);
    } catch (error) {
      if (!isInUse(error) || performance.now() >= deadline) throw error;
      await sleep(100);
    }
  }
}

export const isInUse = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && error.code === 'EADDRINUSE';
