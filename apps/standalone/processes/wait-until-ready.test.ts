import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { waitUntilReady } from './wait-until-ready.ts';

type Answer = { status: number; body: unknown };

/** An API that gives these answers in turn, and then repeats the last one. */
async function serve(...answers: Answer[]) {
  let calls = 0;
  const server = createServer((_request, response) => {
    const answer = answers[Math.min(calls, answers.length - 1)];
    calls += 1;
    response.writeHead(answer?.status ?? 500).end(JSON.stringify(answer?.body));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.close().closeAllConnections();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, calls: () => calls };
}

const notReady = { status: 503, body: { error: { message: 'Not ready (database: does not answer).' } } };
const alone = { status: 200, body: { status: 'ready', checks: { database: 'ok', workers: 'none' } } };
const ready = { status: 200, body: { status: 'ready', checks: { database: 'ok', workers: 'connected' } } };
const quick = { intervalMs: 1, noticeMs: 0 };

test('ready is an API that says so and a worker that is connected', async () => {
  const api = await serve(notReady, alone, alone, ready);
  const notices: string[] = [];
  const { signal } = new AbortController();
  await waitUntilReady({ url: api.url, signal, onWaiting: (why) => notices.push(why), ...quick });
  expect(api.calls()).toBe(4);
  expect(notices).toEqual([
    'Not ready (database: does not answer).',
    'no worker is connected',
    'no worker is connected',
  ]);
});

test('it also waits for what the API cannot know', async () => {
  const api = await serve(ready);
  const missing = ['the worker is starting', 'the simulator is starting'];
  const notices: string[] = [];
  const { signal } = new AbortController();
  const alsoMissing = () => missing.shift();
  await waitUntilReady({ url: api.url, signal, alsoMissing, onWaiting: (why) => notices.push(why), ...quick });
  expect(notices).toEqual(['the worker is starting', 'the simulator is starting']);
});

test('it ends with the reason when the start is given up', async () => {
  const api = await serve(notReady);
  const giveUp = new AbortController();
  const onWaiting = () => giveUp.abort(new Error('the worker does not start'));
  await expect(waitUntilReady({ url: api.url, signal: giveUp.signal, onWaiting, ...quick })).rejects.toThrow(
    'the worker does not start',
  );
});
