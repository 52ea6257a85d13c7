import { once } from 'node:events';
import { createServer, request as send, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { browserPath, launchBrowser } from './browser.ts';

const prefix = '/tools/llm';

/** A proxy that serves the API below a path, which it removes. Every other path is unknown. */
function createProxy(target: () => string): Server {
  return createServer((request, response) => {
    const { method, headers, url = '' } = request;
    if (!url.startsWith(`${prefix}/`)) {
      response.writeHead(404).end();
      return;
    }
    const passed = send(target() + url.slice(prefix.length), { method, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(response);
    });
    passed.on('error', () => response.destroy());
    response.on('close', () => passed.destroy());
    request.pipe(passed);
  });
}

describe.skipIf(browserPath === undefined)('the console below a path of a proxy, in Chromium', () => {
  let platform: TestPlatform;
  let browser: Browser;
  let proxy: Server;
  let publicUrl: string;
  beforeAll(async () => {
    proxy = createProxy(() => new URL(platform.baseUrl).origin).listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    publicUrl = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}${prefix}`;
    platform = await startPlatform({ worker: false, environment: { SLUICE_PUBLIC_URL: publicUrl } });
    browser = await launchBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    proxy?.closeAllConnections();
    proxy?.close();
    await platform?.stop();
  });

  test('an invite is accepted, and its page links to the console', async () => {
    const answer = await fetch(`${platform.baseUrl}/admin/users/invites`, {
      method: 'POST',
      headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ email: 'ada@example.com', role: 'member' }),
    });
    const { invite_link: link } = (await answer.json()) as { invite_link: string };
    expect(link).toContain(publicUrl);
    const page = await browser.newPage();
    await page.goto(link);
    await page.getByLabel('First name').fill('Ada');
    await page.getByLabel('Last name').fill('Lovelace');
    await page.getByRole('button', { name: 'Accept' }).click();
    await page.getByRole('heading', { name: 'Welcome' }).waitFor();
    await page.getByRole('link', { name: 'Open the console' }).click();
    await page.getByLabel('Gateway key or token').fill(platform.adminKey);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    await page.context().close();
  });

  test('pages, requests and links stay below the path', async () => {
    const page = await browser.newPage();
    const outside: string[] = [];
    page.on('request', (request) => {
      if (request.url().startsWith('http') && !request.url().startsWith(`${publicUrl}/`)) outside.push(request.url());
    });
    await page.goto(`${publicUrl}/console/batches/batch_unknown`);
    await page.getByLabel('Gateway key or token').fill(platform.adminKey);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('link', { name: 'Playground' }).click();
    await page.getByRole('heading', { name: 'Playground' }).waitFor();
    await page.getByRole('link', { name: 'API reference' }).click();
    await page.getByRole('button', { name: 'Authorize' }).waitFor();
    await page.goto(`${publicUrl}/`);
    await page.waitForURL(`${publicUrl}/console`);
    expect(outside).toEqual([]);
    await page.context().close();
  });
});
