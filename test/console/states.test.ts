import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { chatLine, toJsonl } from '#test/api/batch-kit.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { accessibilityProblems, browserPath, launchBrowser, openConsole } from './browser.ts';

/** Changes arrive within a second or two; a loaded machine takes longer. */
const patience = { timeout: 15_000 };
const longName = 'a-very-long-name-without-any-break-'.repeat(7).slice(0, 200);
const arabic = 'مرحبا بالعالم (עברית)';

// What a page says when there is much, nothing, or nobody who may see it.
describe.skipIf(browserPath === undefined)('the console in unusual states', () => {
  let platform: TestPlatform;
  let browser: Browser;
  beforeAll(async () => {
    platform = await startPlatform();
    browser = await launchBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    await platform?.stop();
  });

  const post = async (path: string, body: object): Promise<{ id: string; key: string }> => {
    const headers = { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' };
    const response = await fetch(`${platform.baseUrl}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
    expect(response.status).toBe(200);
    return (await response.json()) as { id: string; key: string };
  };
  const callSimulator = (model = 'sim-small'): Promise<unknown> =>
    post('/chat/completions', { model: `@simulator/${model}`, messages: [{ role: 'user', content: 'Hi' }] });
  const open = (page: Page, path: string): Promise<unknown> =>
    page.goto(`${new URL(platform.baseUrl).origin}/console${path}`);
  const uploadLines = async (text: string): Promise<string> => {
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new File([text], 'lines.jsonl'));
    const headers = { authorization: `Bearer ${platform.adminKey}` };
    const response = await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers, body: form });
    return ((await response.json()) as { id: string }).id;
  };

  test('a session that ends while somebody reads asks for a key, and goes on at the same page', async () => {
    const { page } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Batches', exact: true }).click();
    await page.getByRole('heading', { name: 'Batches' }).waitFor();
    await page.context().clearCookies();
    await page.getByRole('link', { name: 'Requests' }).click();
    await page.getByText('Your session has ended').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByLabel('Gateway key or token').fill(platform.adminKey);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('heading', { name: 'Requests' }).waitFor();
    await page.context().close();
  });

  test('a key without the scope of a page gets one sentence that names it, and no request is made in vain', async () => {
    const { key } = await post('/api-keys', { name: 'narrow', scopes: ['chat.write'] });
    const context = await browser.newContext();
    const page = await context.newPage();
    const refused: string[] = [];
    page.on('response', (response) => {
      if (response.status() === 403) refused.push(response.url());
    });
    await open(page, '');
    await page.getByLabel('Gateway key or token').fill(key);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('Your key cannot open this page').waitFor();
    await page.getByText('analytics.read').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    expect(await page.getByRole('alert').count()).toBe(0);
    await page.getByRole('main').getByRole('link', { name: 'Playground' }).click();
    await page.getByRole('heading', { name: 'Playground' }).waitFor();
    expect(refused.filter((url) => !url.endsWith('/v1/models'))).toEqual([]);
    await context.close();
  });

  test('every virtual key can be found, however many there are', async () => {
    for (const name of [longName, arabic])
      await post('/virtual-keys', { name, provider: 'openai', key: 'sk-12345678' });
    const many = Array.from({ length: 120 }, (_value, n) => `many ${n}`);
    // A few at a time: they wait for each other.
    for (let from = 0; from < many.length; from += 10) {
      const some = many.slice(from, from + 10);
      await Promise.all(some.map((name) => post('/virtual-keys', { name, provider: 'openai', key: 'sk-12345678' })));
    }
    const { page, problems } = await openConsole(browser, platform, { width: 360, height: 740 });
    await open(page, '/keys');
    await page.getByText('123 of 123').waitFor();
    await page.getByLabel('Find in Virtual keys').fill('simulator');
    await page.getByText('1 of 123').waitFor();
    const keys = page.getByRole('region', { name: 'Virtual keys' });
    expect(await keys.getByRole('link', { name: 'simulator' }).count()).toBe(1);
    expect(await accessibilityProblems(page)).toEqual([]);
    expect(await page.evaluate<number>('document.documentElement.scrollWidth')).toBe(360);
    await open(page, '/batches/new');
    const one = { name: 'one.jsonl', mimeType: 'application/jsonl', buffer: Buffer.from(toJsonl([chatLine('one')])) };
    await page.getByLabel('Input file').setInputFiles(one);
    await page.getByLabel('Virtual key').selectOption('simulator');
    expect(problems).toEqual([]);
    await page.context().close();
  });

  test('a status finds the batches that have it, however old, and a batch shows metadata in any script', async () => {
    const endpoint = '/v1/chat/completions';
    const create = (input_file_id: string): Promise<{ id: string }> =>
      post('/batches', {
        input_file_id,
        endpoint,
        completion_window: '24h',
        metadata: { note: longName, [arabic]: 'x' },
      });
    const { id: failed } = await create(await uploadLines('[]\n'));
    const fine = await uploadLines(toJsonl([chatLine('one')]));
    // Equal creates wait for each other, so more at a time can be too many for a busy machine.
    for (let group = 0; group < 10; group += 1) await Promise.all(Array.from({ length: 6 }, () => create(fine)));
    const { page, problems } = await openConsole(browser, platform);
    await open(page, '/batches?status=failed');
    await page
      .getByRole('row', { name: /failed/ })
      .getByRole('link')
      .click();
    await page.getByRole('heading', { name: 'Batch failed' }).waitFor();
    await page.getByText('the file was rejected, so no line was called').waitFor();
    expect(page.url()).toContain(failed);
    expect(await accessibilityProblems(page)).toEqual([]);
    await open(page, '/batches?status=expired');
    await page.getByText('None of 61 batches is expired').waitFor();
    expect(problems).toEqual([]);
    await page.context().close();
  });

  test('a page whose data takes longer than the changes come shows them nevertheless', async () => {
    await callSimulator();
    const { page } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Requests' }).click();
    const rows = page.getByRole('region', { name: 'Requests' }).getByRole('row');
    await rows.nth(1).waitFor(patience);
    await page.context().route('**/v1/logs?**', async (route) => {
      // Longer than the pause between two refreshes, as a large log on a slow disk.
      await new Promise((resolve) => setTimeout(resolve, 1_000));
      await route.continue().catch(() => {});
    });
    const ended = new AbortController();
    onTestFinished(() => ended.abort());
    const calls = (async () => {
      while (!ended.signal.aborted) await callSimulator('sim-large');
    })();
    await expect.poll(() => rows.filter({ hasText: 'sim-large' }).count(), patience).toBeGreaterThan(0);
    ended.abort();
    await calls;
    await page.context().close();
  });

  test('a page that cannot be read says why while it tries again, and is there as soon as it can', async () => {
    const { page } = await openConsole(browser, platform);
    const error = { message: 'The server had an error.', type: 'server_error', param: null, code: 'internal_error' };
    await page.context().route('**/v1/audit-logs?**', (route) => route.fulfill({ status: 500, json: { error } }));
    await page.getByRole('link', { name: 'Events', exact: true }).click();
    await page.getByText('The server had an error. Retrying').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.context().unroute('**/v1/audit-logs?**');
    await page
      .getByRole('cell', { name: / created$/ })
      .first()
      .waitFor(patience);
    await page.context().close();
  });
});
