import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import type { IncomingHttpHeaders } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { AddressInfo, Server } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createServer as createTlsServer, type TLSSocket } from 'node:tls';
import { onTestFinished } from 'vitest';

type Certificate = { key: string; cert: string };

let made: Certificate | undefined;

/** A certificate for 127.0.0.1 that it signed itself. */
function makeCertificate(): Certificate {
  if (made !== undefined) return made;
  const folder = mkdtempSync(path.join(tmpdir(), 'sluice-siem-'));
  const [key, cert] = [path.join(folder, 'key.pem'), path.join(folder, 'cert.pem')];
  const words = `req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=siem`;
  const names = ['-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', cert];
  execFileSync('openssl', [...words.split(' '), ...names], { stdio: 'ignore' });
  made = { key: readFileSync(key, 'utf8'), cert: readFileSync(cert, 'utf8') };
  rmSync(folder, { recursive: true });
  return made;
}

export type Received = { path: string; headers: IncomingHttpHeaders; body: string };
/** The status of the answer, or its body with the status 200; null: there is none. */
type Script = (request: Received, count: number) => number | object | null;

export type Receiver = { url: string; ca: string; requests: Received[]; answer: (script: Script) => void };

async function listen(server: Server): Promise<number> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

/** A server for HTTPS whose certificate is only known to those who have `ca`. Answers with 200. */
export async function startHttpsReceiver(): Promise<Receiver> {
  const { key, cert } = makeCertificate();
  const requests: Received[] = [];
  let script: Script = () => 200;
  const server = createHttpsServer({ key, cert }, (request, response) => {
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      const received = { path: request.url ?? '', headers: request.headers, body: Buffer.concat(pieces).toString() };
      requests.push(received);
      const answer = script(received, requests.length);
      if (answer === null) return;
      response.writeHead(typeof answer === 'number' ? answer : 200, { 'content-type': 'application/json' });
      const echo = { text: `echo ${request.headers.authorization}`, code: 9 };
      response.end(JSON.stringify(typeof answer === 'number' ? echo : answer));
    });
  });
  const port = await listen(server);
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `https://127.0.0.1:${port}`, ca: cert, requests, answer: (next) => void (script = next) };
}

/** A server for syslog over TLS. `hangs`: it reads nothing and closes no connection. */
export async function startSyslogReceiver({ hangs = false } = {}): Promise<{
  url: string;
  ca: string;
  messages: () => string[];
}> {
  const { key, cert } = makeCertificate();
  const connections: Buffer[][] = [];
  const open = new Set<TLSSocket>();
  const server = createTlsServer({ key, cert, allowHalfOpen: hangs }, (socket) => {
    open.add(socket);
    socket.on('error', () => {});
    if (hangs) return;
    const pieces: Buffer[] = [];
    connections.push(pieces);
    socket.on('data', (piece: Buffer) => pieces.push(piece));
  });
  const port = await listen(server);
  onTestFinished(() => {
    for (const socket of open) socket.destroy();
    server.close();
  });
  const messages = (): string[] => connections.flatMap((pieces) => readFrames(Buffer.concat(pieces)));
  return { url: `tls://127.0.0.1:${port}`, ca: cert, messages };
}

/** The messages in frames of RFC 5425. */
function readFrames(bytes: Buffer): string[] {
  const messages: string[] = [];
  for (let at = 0; at < bytes.length;) {
    const space = bytes.indexOf(0x20, at);
    const end = space + 1 + Number(bytes.toString('latin1', at, space));
    messages.push(bytes.toString('utf8', space + 1, end));
    at = end;
  }
  return messages;
}
