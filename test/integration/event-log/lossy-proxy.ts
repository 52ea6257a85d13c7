import { createServer, connect, type AddressInfo, type Socket } from 'node:net';

export type LossyProxy = {
  /** The database, by way of the proxy. */
  connectionString: string;
  /** What to do to the next COMMIT, once: both ends see their connection die. */
  loseNext(what: 'commit' | 'reply'): void;
  /** COMMITs that were lost so far. */
  lost(): number;
  close(): Promise<void>;
};

/**
 * Stands between a client and Postgres. `commit`: the next COMMIT never arrives. `reply`: it arrives and is executed,
 * and its answer is lost. In between, bytes pass as they come.
 */
export async function startLossyProxy(target: string): Promise<LossyProxy> {
  const url = new URL(target);
  let next: 'commit' | 'reply' | undefined;
  let lost = 0;
  const sockets = new Set<Socket>();

  const server = createServer((client) => {
    const upstream = connect(Number(url.port), url.hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    let swallowReply = false;
    client.on('data', (bytes: Buffer) => {
      if (next !== undefined && isCommit(bytes)) {
        swallowReply = next === 'reply';
        const dropCommit = next === 'commit';
        next = undefined;
        lost += 1;
        if (dropCommit) return void client.destroy();
      }
      upstream.write(bytes);
    });
    upstream.on('data', (bytes: Buffer) => {
      // Postgres answers a COMMIT after it is durable.
      if (swallowReply) client.destroy();
      else client.write(bytes);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const through = new URL(target);
  through.hostname = '127.0.0.1';
  through.port = String((server.address() as AddressInfo).port);
  return {
    connectionString: through.href,
    loseNext(what) {
      next = what;
    },
    lost: () => lost,
    close: () =>
      new Promise((resolve) => {
        for (const socket of sockets) socket.destroy();
        server.close(() => resolve());
      }),
  };
}

/** A simple query of the wire protocol: 'Q', length, text, NUL. A client sends nothing else in the same packet. */
const isCommit = (bytes: Buffer): boolean => bytes[0] === 0x51 && /^commit\0$/i.test(bytes.subarray(5).toString());
