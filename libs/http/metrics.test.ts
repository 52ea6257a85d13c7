import { expect, test } from 'vitest';
import { serveForTest, testRoute } from './http-test-kit.ts';
import { createMetrics } from './metrics.ts';

test('requests are counted by method, route template and status class', async () => {
  const metrics = createMetrics();
  const route = testRoute({
    method: 'GET',
    path: '/v1/files/:fileId',
    scope: 'public',
    handler: (_request, response) => void response.json({}),
  });
  await using server = await serveForTest([route], { deps: { observe: metrics.observeRequest } });
  for (const id of ['a', 'b', 'c']) await (await fetch(`${server.url}/v1/files/${id}`)).text();
  for (const path of ['/x1', '/x2']) await (await fetch(server.url + path)).text();
  await (await fetch(`${server.url}/v1/files/a`, { method: 'DELETE' })).text();

  const asCount = async (labels: string): Promise<string | undefined> => {
    const { body } = await metrics.renderMetrics();
    return body
      .split('\n')
      .find((line) => line.startsWith(`sluice_http_request_duration_seconds_count{${labels}}`))
      ?.split(' ')[1];
  };
  await expect.poll(() => asCount('method="GET",route="/v1/files/:fileId",status="2xx"')).toBe('3');
  await expect.poll(() => asCount('method="GET",route="unmatched",status="4xx"')).toBe('2');
  await expect.poll(() => asCount('method="DELETE",route="/v1/files/:fileId",status="4xx"')).toBe('1');
  const { body, contentType } = await metrics.renderMetrics();
  expect(contentType).toContain('text/plain');
  expect(body).toContain('nodejs_eventloop_lag_p99_seconds');
});

test('metrics are rendered ten times a second at most, for however many requests', async () => {
  let nowMs = 0;
  const metrics = createMetrics(() => nowMs);
  const observe = (): void => metrics.observeRequest({ method: 'GET', route: '/', status: 200, durationMs: 1 });
  const count = async (): Promise<string | undefined> =>
    /request_duration_seconds_count\{[^}]*\} (\d+)/.exec((await metrics.renderMetrics()).body)?.[1];
  const counts: (string | undefined)[] = [];
  for (let request = 0; request < 12; request += 1) {
    observe();
    counts.push(await count());
  }
  expect(counts).toEqual(['1', '2', '3', '4', '5', '6', '7', '8', '9', '10', '10', '10']);
  nowMs = 1_000;
  expect(await count()).toBe('12');
});
