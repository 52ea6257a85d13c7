import { expect, test } from 'vitest';
import { serveForTest } from '#libs/http/http-test-kit.ts';
import { docsRoutes } from './docs-routes.ts';

test('the API reference and every file that it names come from this server, and it may call no other', async () => {
  await using server = await serveForTest(docsRoutes());
  const page = await fetch(`${server.url}/docs`);
  const html = await page.text();
  expect(page.headers.get('content-security-policy')).toContain("default-src 'none'; script-src 'self';");
  expect(html).not.toMatch(/https?:\/\//);
  const files = [...html.matchAll(/(?:src|href)="\.(\/docs\/[^"]+)"/g)].map(([, path = '']) => path);
  expect(files).toHaveLength(4);
  for (const path of files) {
    const compressed = await fetch(server.url + path, { headers: { 'accept-encoding': 'gzip' } });
    const plain = await fetch(server.url + path, { headers: { 'accept-encoding': 'identity' } });
    expect([compressed.headers.get('content-encoding'), plain.headers.get('content-encoding')]).toEqual(['gzip', null]);
    expect(compressed.headers.get('content-type')).toBe(
      `text/${path.endsWith('css') ? 'css' : 'javascript'}; charset=utf-8`,
    );
    expect(await compressed.text()).toBe(await plain.text());
  }
});
