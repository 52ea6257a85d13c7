import { createServer, connect, type Socket } from 'node:net';

export type TcpProxy = {
  /** The connection string with the proxy's address in it. */
  connectionString: string;
  /** Called with what the server sends, before the client gets it; false swallows it. Default: all passes. */
  setFilter(passes: (data: Buffer) => boolean): void;
  /** Ends all connections abruptly, as a crash does. */
  resetAll(): void;
  close(): Promise<void>;
};

/**
 * A TCP proxy on 127.0.0.1 in front of a database, to lose answers and connections at chosen moments. On a free port, or
 * on `ownPort`.
 */
export async function startTcpProxy(target: string, ownPort = 0): Promise<TcpProxy> {
  const { hostname, port } = new URL(target);
  const sockets = new Set<Socket>();
  let passes = (_data: Buffer): boolean => true;
  const server = createServer((client) => {
    const upstream = connect(Number(port), hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => {
        client.destroy();
        upstream.destroy();
        sockets.delete(socket);
      });
    }
    client.on('data', (data) => upstream.write(data));
    upstream.on('data', (data: Buffer) => passes(data) && client.write(data));
  });
  await new Promise<void>((resolve) => server.listen(ownPort, '127.0.0.1', resolve));
  const address = server.address();
  if (typeof address !== 'object' || address === null) throw new Error('The proxy has no port.');
  const url = new URL(target);
  url.hostname = '127.0.0.1';
  url.port = String(address.port);
  return {
    connectionString: url.href,
    setFilter: (filter) => {
      passes = filter;
    },
    resetAll: () => {
      for (const socket of sockets) socket.resetAndDestroy();
    },
    close: () =>
      new Promise((resolve) => {
        for (const socket of sockets) socket.destroy();
        server.close(() => resolve());
      }),
  };
}
