import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { buildConsole } from '#apps/console/build.ts';
import { chatLine, toJsonl } from '#test/api/batch-kit.ts';
import { startKillableApi } from '#test/api/api-process.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { accessibilityProblems, browserPath, launchBrowser, openConsole } from './browser.ts';

// Without a browser these tests are left out: .ci/run installs one.
describe.skipIf(browserPath === undefined)('the console in Chromium', () => {
  let platform: TestPlatform;
  let browser: Browser;
  beforeAll(async () => {
    await buildConsole();
    platform = await startPlatform();
    browser = await launchBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    await platform?.stop();
  });

  test('a wrong key is refused with a sentence, and nothing of the workspace is shown', async () => {
    const page = await browser.newPage();
    await page.goto(`${new URL(platform.baseUrl).origin}/console/batches`);
    await page.getByLabel('Gateway key or token').fill('slk_wrong');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('the gateway key is unknown, revoked or expired').waitFor();
    expect(await page.getByRole('navigation').count()).toBe(0);
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.close();
  });

  test('a batch is written, checked, submitted and watched until it has ended, without a request to anywhere else', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('link', { name: 'Run a batch' }).click();
    await page.getByLabel('Lines of the sample').fill('500');
    await page.getByRole('button', { name: 'Write a sample' }).click();
    await page.getByRole('button', { name: 'Submit 500 lines' }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Submit 500 lines' }).click();
    await page.getByRole('heading', { name: 'Batch completed' }).waitFor();
    await page.getByText('500 of 500 lines, 0 failed').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);

    const download = page.waitForEvent('download');
    await page.getByRole('link', { name: 'Download output' }).click();
    const stream = await (await download).createReadStream();
    const text = (await stream.toArray()).join('');
    expect(text.trim().split('\n')).toHaveLength(500);

    await page.getByRole('link', { name: 'Events' }).last().click();
    await page.getByText('All results are in').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a file with problems is not sent, and the page names their lines', async () => {
    const { page } = await openConsole(browser, platform);
    await page.goto(`${new URL(platform.baseUrl).origin}/console/batches/new`);
    const text = `${toJsonl([chatLine('one')])}{"custom_id": \n[]\n`;
    const file = { name: 'broken.jsonl', mimeType: 'application/jsonl', buffer: Buffer.from(text) };
    await page.getByLabel('Input file').setInputFiles(file);
    await page.getByText('Line 2 is not JSON').waitFor();
    await page.getByText('Line 3 is not a JSON object').waitFor();
    expect(await page.getByRole('button', { name: /^Submit/ }).isDisabled()).toBe(true);
    await page.context().close();
  });

  test('what others do appears by itself, also after the API was restarted', async () => {
    const first = await startKillableApi(platform);
    const { page } = await openConsole(browser, { ...platform, baseUrl: first.baseUrl });
    await page.getByText('Live', { exact: true }).waitFor();
    await page.getByRole('link', { name: 'Batches', exact: true }).click();
    await page.getByRole('cell', { name: 'completed' }).first().waitFor();
    const rows = await page.getByRole('row').count();
    await first.kill();
    await page.getByText('Connection lost').waitFor();
    const port = new URL(first.baseUrl).port;
    const second = await startKillableApi(platform, { PORT: port });
    await page.getByText('Live', { exact: true }).waitFor();
    await submitBatch(platform);
    await expect.poll(() => page.getByRole('row').count()).toBe(rows + 1);
    await second.kill();
    await page.context().close();
  });

  test('a narrow screen shows the same pages without scrolling sideways', async () => {
    const { page } = await openConsole(browser, platform, { width: 360, height: 740 });
    for (const path of ['/console', '/console/batches', '/console/batches/new']) {
      await page.goto(`${new URL(platform.baseUrl).origin}${path}`);
      await page.getByRole('heading', { level: 1 }).waitFor();
      const width = await page.evaluate<number>('document.documentElement.scrollWidth');
      expect({ path, width }).toEqual({ path, width: 360 });
    }
    await page.context().close();
  });

  test('signing out ends the session in this browser', async () => {
    const { page } = await openConsole(browser, platform);
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { name: 'Sign in to Sluice' }).waitFor();
    expect(await page.context().cookies()).toEqual([]);
    await page.context().close();
  });
});

async function submitBatch({ baseUrl, adminKey }: TestPlatform): Promise<void> {
  const headers = { authorization: `Bearer ${adminKey}` };
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new File([toJsonl([chatLine('one')])], 'one.jsonl'));
  const uploaded = await fetch(`${baseUrl}/files`, { method: 'POST', headers, body: form });
  const { id } = (await uploaded.json()) as { id: string };
  const body = JSON.stringify({ input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' });
  const created = await fetch(`${baseUrl}/batches`, {
    method: 'POST',
    headers: { ...headers, 'content-type': 'application/json' },
    body,
  });
  expect(created.status).toBe(200);
}
