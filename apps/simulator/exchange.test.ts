import { createServer, request as httpRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from 'vitest';
import { createExchange, type Exchange } from './exchange.ts';
import { createStats } from './stats.ts';

/** Runs `serve` for one request whose client does not read the response and disconnects as soon as `serve` has begun. */
async function withLeavingClient(serve: (exchange: Exchange) => Promise<boolean>) {
  const stats = createStats({ countedKeysMax: 1 });
  const served = Promise.withResolvers<boolean>();
  const server = createServer((request, response) => {
    const exchange = createExchange(request, response, { route: 'test', stats, headers: () => [] });
    served.resolve(serve(exchange));
    client.destroy();
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const client = httpRequest({ host: '127.0.0.1', port: (server.address() as AddressInfo).port });
  client.on('error', () => {});
  client.end();
  const result = await served.promise;
  await new Promise((resolve) => server.close(resolve));
  return { result, stats: stats.snapshot() };
}

test('a pause ends when the client leaves, and the call is counted as aborted', async () => {
  const { result, stats } = await withLeavingClient((exchange) => exchange.pause(3_600_000));
  expect(result).toBe(false);
  expect(stats).toMatchObject({ aborted_requests: 1, open_requests: 0 });
});

test('a write that waits for the client ends when the client leaves', async () => {
  const { result } = await withLeavingClient(async (exchange) => {
    exchange.head(200, []);
    return exchange.write(Buffer.alloc(64 * 1_048_576));
  });
  expect(result).toBe(false);
});
