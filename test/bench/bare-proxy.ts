import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Pool } from 'undici';

// The least that a proxy can be in Node: node:http in, undici out, no look at anything. The measure for the live path.

const pool = new Pool(process.argv[2] as string, { connections: 256 });

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    const { 'content-type': type = '', authorization = '' } = request.headers;
    pool.dispatch(
      {
        method: 'POST',
        path: request.url ?? '/',
        headers: { 'content-type': type, authorization },
        body: chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks),
      },
      {
        onRequestStart: () => {},
        onResponseStart: (_controller, status, headers) => {
          response.writeHead(status, {
            'content-type': String(headers['content-type']),
            'content-length': String(headers['content-length']),
          });
        },
        onResponseData: (_controller, chunk) => {
          response.write(chunk);
        },
        onResponseEnd: () => response.end(),
        onResponseError: () => response.destroy(),
      },
    );
  });
});
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address() as AddressInfo;
  console.log(JSON.stringify({ url: `http://127.0.0.1:${port}` }));
});
