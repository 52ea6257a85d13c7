import { createServer } from 'node:net';

/** Returns `port` if it is free, or any free port for 0. Throws the system's error: EADDRINUSE, EACCES, EADDRNOTAVAIL. */
export function probePort(port: number, host: string): Promise<number> {
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
