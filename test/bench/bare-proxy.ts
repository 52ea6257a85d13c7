import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Agent, Pool, request, setGlobalDispatcher } from 'undici';

// The cost of a proxy in Node that reads nothing, to compare the live path with. node bare-proxy.ts ORIGIN MODE:
// `request` is undici's request with the bodies piped, the usual way to write it; `dispatch` is undici's dispatch with
// the request's body collected, the fastest that we know.

const [origin = '', mode = ''] = process.argv.slice(2);
const connections = 256;
const pool = new Pool(origin, { connections });
setGlobalDispatcher(new Agent({ connections }));

const server = createServer(mode === 'dispatch' ? dispatchOn : requestOn);
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address() as AddressInfo;
  console.log(JSON.stringify({ url: `http://127.0.0.1:${port}` }));
});

function requestOn(incoming: IncomingMessage, response: ServerResponse): void {
  request(`${origin}${incoming.url}`, { method: 'POST', headers: headersOf(incoming), body: incoming })
    .then(({ statusCode, headers, body }) => {
      response.writeHead(statusCode, answerHeaders(headers));
      body.on('error', () => response.destroy()).pipe(response);
    })
    .catch(() => response.destroy());
}

function dispatchOn(incoming: IncomingMessage, response: ServerResponse): void {
  const chunks: Buffer[] = [];
  incoming.on('data', (chunk: Buffer) => chunks.push(chunk));
  incoming.on('end', () => {
    const body = chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks);
    pool.dispatch(
      { method: 'POST', path: incoming.url ?? '/', headers: headersOf(incoming), body },
      {
        onRequestStart: () => {},
        onResponseStart: (_controller, status, headers) => void response.writeHead(status, answerHeaders(headers)),
        onResponseData: (_controller, chunk) => void response.write(chunk),
        onResponseEnd: () => response.end(),
        onResponseError: () => response.destroy(),
      },
    );
  });
}

function headersOf({ headers }: IncomingMessage): Record<string, string> {
  return {
    'content-type': String(headers['content-type']),
    'content-length': String(headers['content-length']),
    authorization: String(headers.authorization),
  };
}

function answerHeaders(headers: Readonly<Record<string, string | string[] | undefined>>): Record<string, string> {
  const length = headers['content-length'];
  return {
    'content-type': String(headers['content-type']),
    // A stream has none.
    ...(length === undefined ? {} : { 'content-length': String(length) }),
  };
}
