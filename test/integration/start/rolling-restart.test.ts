import { Agent, createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform } from '#test/platform.ts';
import { startApp, unusedPort, type AppProcess } from './app-process.ts';

// Two API processes behind a proxy that looks at their readiness, as a rolling restart has them.

const probeMs = 200;
const clients = 40;
const restarts = 3;

type Backend = { port: number; isReady: boolean; agent: Agent };

/**
 * A proxy that passes each request to one of the backends that were ready at the last look, over connections that it
 * keeps. It repeats nothing: what a backend loses is a failure of its client's.
 */
async function startProxy(backends: readonly Backend[]): Promise<{ port: number }> {
  let turn = 0;
  const server = createServer((incoming: IncomingMessage, outgoing: ServerResponse) => {
    const ready = backends.filter((backend) => backend.isReady);
    turn += 1;
    const backend = ready[turn % ready.length];
    if (!backend) return void outgoing.writeHead(502).end('no backend is ready');
    const { method, url: path, headers } = incoming;
    // What is between the client and this proxy is not passed on.
    delete headers.connection;
    const passed = httpRequest({ agent: backend.agent, port: backend.port, method, path, headers }, (answer) => {
      delete answer.headers.connection;
      outgoing.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(outgoing);
      answer.on('error', () => outgoing.destroy());
    });
    passed.on('error', (error) => outgoing.writeHead(502).end(String(error)));
    incoming.pipe(passed);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const look = async (backend: Backend): Promise<void> => {
    backend.isReady = await fetch(`http://127.0.0.1:${backend.port}/health/ready`).then(
      (response) => response.ok,
      () => false,
    );
  };
  const probes = setInterval(() => void Promise.all(backends.map(look)), probeMs);
  onTestFinished(() => {
    clearInterval(probes);
    server.closeAllConnections();
    server.close();
    for (const { agent } of backends) agent.destroy();
  });
  return { port: (server.address() as AddressInfo).port };
}

/** One call over the agent's connection; what came, or what went wrong. */
function call(agent: Agent, port: number, key: string): Promise<string> {
  return new Promise((resolve) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const request = httpRequest({ agent, port, method: 'POST', path: '/v1/chat/completions', headers }, (response) => {
      let text = '';
      response.on('data', (chunk: Buffer) => (text += String(chunk)));
      response.on('end', () => resolve(response.statusCode === 200 ? 'ok' : `${response.statusCode} ${text}`));
      response.on('error', (error) => resolve(String(error)));
    });
    request.on('error', (error) => resolve(String(error)));
    const messages = [{ role: 'user', content: 'hello' }];
    request.end(JSON.stringify({ model: '@simulator/sim-echo+20ms', messages }));
  });
}

test('three restarts behind a proxy that looks at readiness cost none of forty clients a request', async () => {
  const platform = await startPlatform({ worker: false });
  onTestFinished(() => platform.stop());
  const { adminKey } = platform;
  const backends: Backend[] = [];
  const processes: AppProcess[] = [];
  const start = (port: number): AppProcess =>
    startApp('api', { ...platform.environment, PORT: String(port), SLUICE_STOP_DELAY: `${10 * probeMs}ms` });
  for (let index = 0; index < 2; index += 1) {
    const port = await unusedPort();
    backends.push({ port, isReady: false, agent: new Agent({ keepAlive: true }) });
    processes.push(start(port));
  }
  const proxy = await startProxy(backends);
  const untilBothAreReady = () => eventually(() => backends.every(({ isReady }) => isReady), Boolean);
  await untilBothAreReady();

  const over = new AbortController();
  let answered = 0;
  const failures: string[] = [];
  const work = Promise.all(
    Array.from({ length: clients }, async (_value, client) => {
      const agent = new Agent({ keepAlive: true, maxSockets: 1 });
      // Some are always busy, some leave their connections idle for longer than a probe takes.
      const pauseMs = (client % 8) * 60;
      while (!over.signal.aborted) {
        const came = await call(agent, proxy.port, adminKey);
        answered += 1;
        if (came !== 'ok') failures.push(came);
        await sleep(pauseMs, over.signal);
      }
      agent.destroy();
    }),
  );
  for (let restart = 0; restart < restarts; restart += 1) {
    const index = restart % 2;
    const before = answered;
    processes[index]?.signal('SIGTERM');
    expect(await processes[index]?.ended).toBe(0);
    expect(backends[index]?.isReady).toBe(false);
    processes[index] = start(backends[index]?.port ?? 0);
    await untilBothAreReady();
    expect(answered).toBeGreaterThan(before + clients);
  }
  over.abort();
  await work;
  expect(failures).toEqual([]);
}, 120_000);
