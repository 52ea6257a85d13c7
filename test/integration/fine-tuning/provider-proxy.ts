import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { once } from 'node:events';

export type ProxiedCall = { method: string; path: string; authorization: string | undefined };

/**
 * What becomes of a call: it passes, its reply is lost after the provider did it, it is refused with an answer of its own,
 * or it never arrives. A promise holds it until then.
 */
export type Verdict = 'pass' | 'lose-reply' | 'reset' | { status: number; body: unknown };

export type ProviderProxy = {
  /** Ends in `/v1`. */
  url: string;
  calls: ProxiedCall[];
  /** Calls of that method and of a path that matches. */
  count: (method: string, path: RegExp) => number;
  judge: (next: (call: ProxiedCall) => Verdict | Promise<Verdict>) => void;
  stop: () => Promise<void>;
};

/** A provider between the platform and the simulator, which a test can take away in the middle of anything. */
export async function startProviderProxy(simulatorUrl: string): Promise<ProviderProxy> {
  const behind = new URL(simulatorUrl);
  const calls: ProxiedCall[] = [];
  let judge: (call: ProxiedCall) => Verdict | Promise<Verdict> = () => 'pass';

  const pass = async (body: Buffer, incoming: IncomingMessage, outgoing: ServerResponse | null): Promise<void> => {
    const { method, url: path, headers } = incoming;
    const forwarded = httpRequest({ host: behind.hostname, port: behind.port, method, path, headers });
    forwarded.end(body);
    const [answer] = (await once(forwarded, 'response')) as [IncomingMessage];
    const chunks: Buffer[] = [];
    for await (const chunk of answer) chunks.push(chunk as Buffer);
    outgoing?.writeHead(answer.statusCode ?? 502, answer.headers).end(Buffer.concat(chunks));
  };

  const server = createServer((incoming, outgoing) => {
    void (async () => {
      const chunks: Buffer[] = [];
      for await (const chunk of incoming) chunks.push(chunk as Buffer);
      const call = {
        method: incoming.method ?? '',
        path: incoming.url ?? '',
        authorization: incoming.headers.authorization,
      };
      calls.push(call);
      const verdict = await judge(call);
      if (typeof verdict === 'object') {
        outgoing.writeHead(verdict.status, { 'content-type': 'application/json' }).end(JSON.stringify(verdict.body));
        return;
      }
      if (verdict !== 'reset') await pass(Buffer.concat(chunks), incoming, verdict === 'pass' ? outgoing : null);
      if (verdict !== 'pass') incoming.socket.resetAndDestroy();
    })().catch(() => outgoing.destroy()); // the platform has left in the middle
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('the proxy has no port');
  return {
    url: `http://127.0.0.1:${address.port}/v1`,
    calls,
    count: (method, path) => calls.filter((call) => call.method === method && path.test(call.path)).length,
    judge: (next) => {
      judge = next;
    },
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
