import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { chatLine, toJsonl } from '#test/api/batch-kit.ts';
import { startKillableApi } from '#test/api/api-process.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { accessibilityProblems, browserPath, launchBrowser, openConsole } from './browser.ts';

/** Changes arrive within a second or two; a loaded machine takes longer. */
const patience = { timeout: 15_000 };

// Without a browser these tests are left out: .ci/run installs one.
describe.skipIf(browserPath === undefined)('the console in Chromium', () => {
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
    await page.getByLabel('Lines in the sample').fill('500');
    await page.getByRole('button', { name: 'Generate a sample' }).click();
    await page.getByRole('button', { name: 'Submit 500 lines' }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Estimate cost' }).click();
    await page.getByText('would run').waitFor();
    await page.getByRole('cell', { name: 'Calls simulator for sim-small' }).waitFor();
    expect(await page.getByText(/^\$[\d.]+ simulated$/).count()).toBe(2);
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
    await page.getByText('All results are complete').waitFor();
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
    await page.getByText('Line 2 is not valid JSON').waitFor();
    await page.getByText('Line 3 is not a JSON object').waitFor();
    expect(await page.getByRole('button', { name: /^Submit/ }).isDisabled()).toBe(true);
    await page.context().close();
  });

  test('failed lines are grouped by cause, read one by one, and repeated in a new batch', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    const bad = { model: '@simulator/sim-fault-400' };
    const input = toJsonl([chatLine('fine'), chatLine('lost-1', bad), chatLine('lost-2', bad)]);
    await page.goto(`${new URL(platform.baseUrl).origin}/console/batches/new`);
    const file = { name: 'some-fail.jsonl', mimeType: 'application/jsonl', buffer: Buffer.from(input) };
    await page.getByLabel('Input file').setInputFiles(file);
    await page.getByRole('button', { name: 'Submit 3 lines' }).click();
    await page.getByRole('heading', { name: 'Batch completed' }).waitFor();
    const causes = page.getByRole('region', { name: 'Causes of failed lines' });
    await causes.getByRole('link', { name: /^400 / }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await causes.getByRole('link').click();
    await page.getByRole('row', { name: /lost-2/ }).waitFor();
    expect(await page.getByRole('region', { name: 'Lines', exact: true }).getByRole('row').count()).toBe(3);
    expect(await accessibilityProblems(page)).toEqual([]);
    await page
      .getByRole('row', { name: /lost-2/ })
      .getByRole('link')
      .click();
    await page.getByRole('region', { name: 'Request' }).getByText('"lost-2"').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.keyboard.press('Escape');
    await expect.poll(() => page.getByRole('dialog').count(), patience).toBe(0);

    await page.getByRole('link', { name: 'Summary' }).click();
    await page.getByRole('button', { name: 'Retry these lines' }).click();
    await page.getByRole('button', { name: 'Create the batch' }).click();
    await page.getByRole('link', { name: /^lines of batch_/ }).waitFor();
    await page.getByText('2 of 2 lines, 2 failed').waitFor();
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a traffic replay shows both sides as soon as it has ended, and both answers of a difference', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    const headers = { authorization: `Bearer ${platform.adminKey}` };
    const send = async (path: string, body: object): Promise<Response> => {
      const isForm = body instanceof FormData;
      const type = isForm ? {} : { 'content-type': 'application/json' };
      const sent = isForm ? body : JSON.stringify(body);
      return await fetch(platform.baseUrl + path, { method: 'POST', headers: { ...headers, ...type }, body: sent });
    };
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new File([toJsonl([chatLine('first'), chatLine('second')])], 'source.jsonl'));
    const { id: input_file_id } = (await (await send('/files', form)).json()) as { id: string };
    const batch = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' };
    const { id: batch_id } = (await (await send('/batches', batch)).json()) as { id: string };
    await page.goto(`${new URL(platform.baseUrl).origin}/console/replays`);
    await page.getByText('No traffic replays yet').waitFor();
    const replay = () => send('/replays', { batch_id, model: '@simulator/sim-text' });
    await expect.poll(async () => (await replay()).status, patience).toBe(200);

    await page.getByRole('heading', { name: '0 equal, 2 different answers' }).waitFor();
    const sides = page.getByRole('region', { name: 'Original and replay' });
    await sides.getByRole('row', { name: 'Answered 2 2' }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page
      .getByRole('row', { name: /second/ })
      .getByRole('button', { name: 'Compare' })
      .click();
    await page.getByRole('region', { name: 'Original', exact: true }).getByText('"second"').waitFor();
    await page.getByRole('region', { name: 'Replay', exact: true }).getByText('"second"').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a batch is paused, says so, and goes on', async () => {
    const { page, problems } = await openConsole(browser, platform);
    const slow = { model: '@simulator/sim-small+200ms' };
    const input = toJsonl(Array.from({ length: 400 }, (_value, index) => chatLine(`slow-${index}`, slow)));
    await page.goto(`${new URL(platform.baseUrl).origin}/console/batches/new`);
    const file = { name: 'slow.jsonl', mimeType: 'application/jsonl', buffer: Buffer.from(input) };
    await page.getByLabel('Input file').setInputFiles(file);
    await page.getByRole('button', { name: 'Submit 400 lines' }).click();
    await page.getByRole('button', { name: 'Pause' }).click();
    await page.getByRole('heading', { name: 'Batch paused' }).waitFor();
    await page.getByText('Press Resume to continue.', { exact: false }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Resume' }).click();
    await page.getByText('400 of 400 lines, 0 failed').waitFor();
    await page.getByRole('heading', { name: 'Batch completed' }).waitFor();
    expect(problems).toEqual([]);
    await page.context().close();
  });

  test('what others do appears by itself, also after the API was restarted', async () => {
    const first = await startKillableApi(platform);
    onTestFinished(first.kill);
    const { page } = await openConsole(browser, { ...platform, baseUrl: first.baseUrl });
    await page.getByText('Live', { exact: true }).waitFor();
    await page.getByRole('link', { name: 'Batches', exact: true }).click();
    await page.getByRole('cell', { name: 'completed' }).first().waitFor();
    const rows = await page.getByRole('row').count();
    await first.kill();
    await page.getByText('Connection lost').waitFor();
    const port = new URL(first.baseUrl).port;
    onTestFinished((await startKillableApi(platform, { PORT: port })).kill);
    await page.getByText('Live', { exact: true }).waitFor();
    await submitBatch(platform);
    await expect.poll(() => page.getByRole('row').count(), patience).toBe(rows + 1);
    await page.context().close();
  });

  test('a frozen API is noticed, and the page comes back when it runs again', async () => {
    const api = await startKillableApi(platform);
    onTestFinished(api.kill);
    const { page } = await openConsole(browser, { ...platform, baseUrl: api.baseUrl });
    await page.getByText('Live', { exact: true }).waitFor();
    api.signal('SIGSTOP');
    await page.getByText('The server has not responded since').waitFor();
    expect(await page.getByText('Live', { exact: true }).count()).toBe(0);
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.getByText('The server has not responded since').waitFor();
    api.signal('SIGCONT');
    await page.getByText('Live', { exact: true }).waitFor();
    await page.getByText('The server has not responded since').waitFor({ state: 'detached' });
    await page.context().close();
  });

  test('a call from the playground is answered as a stream, and is in the request log with where its time went', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Playground' }).click();
    await page.getByLabel('Message').fill('Why is the sky blue?');
    await page.getByRole('button', { name: 'Compare with another' }).click();
    await page.getByLabel('Second model').fill('@simulator/sim-large');
    await page.getByRole('button', { name: 'Send' }).click();
    await expect.poll(() => page.getByText(/^Done after/).count(), patience).toBe(2);
    expect(await accessibilityProblems(page)).toEqual([]);

    await page.getByRole('link', { name: 'Requests' }).click();
    await page.getByLabel('Kind').selectOption('live');
    await page.getByRole('button', { name: 'Search' }).click();
    await page
      .getByRole('cell', { name: /sim-large/ })
      .first()
      .waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('row').nth(1).getByRole('link').click();
    // The bars before this one differ: a call that waited for its turn on a busy machine has its steps recorded.
    await page.getByText('Stream', { exact: true }).waitFor();
    await page.getByText('The bodies were not recorded').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);

    await page.getByRole('link', { name: 'Run again' }).click();
    await page.getByText('whose body was not recorded').waitFor();
    await page.getByRole('button', { name: 'Edit the body as JSON' }).click();
    const body = page.getByLabel('Body as JSON, without the model');
    const whole = await body.inputValue();
    await body.fill(whole.slice(0, 30));
    await page.getByText('This is not valid JSON', { exact: false }).waitFor();
    expect(await page.getByRole('button', { name: 'Send' }).isDisabled()).toBe(true);
    await body.fill(whole.replace('"tools"', '"tool_choice": "required", "tools"'));
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText(/^temperature\(/).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a call that went another way shows each attempt with its time', async () => {
    const targets = [
      { virtual_key: 'simulator', override_params: { model: 'sim-fault-503' } },
      { virtual_key: 'simulator' },
    ];
    const response = await fetch(`${platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${platform.adminKey}`,
        'content-type': 'application/json',
        'x-gateway-config': JSON.stringify({ strategy: { mode: 'fallback' }, targets }),
      },
      body: JSON.stringify({ model: 'sim-small', messages: [{ role: 'user', content: 'Hi' }] }),
    });
    expect(response.status).toBe(200);
    const { page, problems } = await openConsole(browser, platform);
    await page.goto(
      `${new URL(platform.baseUrl).origin}/console/requests?trace_id=${response.headers.get('x-gateway-trace-id')}`,
    );
    await page.getByRole('row').nth(1).getByRole('link').click();
    await page.getByText('sim-fault-503 · 503', { exact: false }).waitFor();
    await page.getByText('sim-small · 200', { exact: false }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    expect(problems).toEqual([]);
    await page.context().close();
  });

  test('the story of a record shows its fields at each moment, and what an event changed', async () => {
    const headers = { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' };
    const change = async (method: string, path: string, body: object): Promise<{ id: string; slug: string }> => {
      const answer = await fetch(`${platform.baseUrl}${path}`, { method, headers, body: JSON.stringify(body) });
      return (await answer.json()) as { id: string; slug: string };
    };
    const config = { virtual_key: 'simulator' };
    const { id, slug } = await change('POST', '/configs', { name: 'before', config });
    await change('PUT', `/configs/${slug}`, { name: 'after', config });
    const { page } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Events', exact: true }).click();
    await page.getByRole('link', { name: id }).first().click();
    await page.getByText('before: before').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('slider').fill('1');
    await page.getByText('After event 1 of').waitFor();
    await expect.poll(() => page.getByRole('cell', { name: 'after', exact: true }).count(), patience).toBe(0);
    await page.context().close();
  });

  test('the organisation sees the starts of its processes, with their settings', async () => {
    const { page, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Events', exact: true }).click();
    await page.getByRole('link', { name: 'Events of the organisation' }).click();
    await page.getByText('Process started').first().waitFor();
    await page.getByRole('link', { name: 'org_default' }).first().click();
    await page.getByText('"SLUICE_MASTER_KEY": "set"').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    expect(problems).toEqual([]);
    await page.context().close();
  });

  test('costs are told apart by model, and each counter of a budget says what is left', async () => {
    const headers = { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' };
    const budget = {
      name: 'for the test',
      type: 'tokens',
      credit_limit: 1_000_000,
      conditions: [],
      group_by: [{ key: 'model' }],
    };
    const body = JSON.stringify(budget);
    await fetch(`${platform.baseUrl}/policies/usage-limits`, { method: 'POST', headers, body });
    const { page, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Cost and limits' }).click();
    await page
      .getByRole('cell', { name: /sim-small/ })
      .first()
      .waitFor();
    // The total, the average of a call, the pace, and a row for each model.
    await expect.poll(() => page.getByText(/^\$[\d.,]+ simulated$/).count(), patience).toBeGreaterThanOrEqual(4);
    await page.getByText('for the test: 1M tokens').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    expect(problems).toEqual([]);
    await page.context().close();
  });

  test('the sessions of a coding agent show their cost, and one session the cost of each agent', async () => {
    const call = async (agent: Record<string, string>): Promise<void> => {
      const { status } = await fetch(`${platform.baseUrl}/chat/completions`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${platform.adminKey}`,
          'content-type': 'application/json',
          'x-claude-code-session-id': 'session/1 of the test',
          ...agent,
        },
        body: JSON.stringify({ model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Hi' }] }),
      });
      expect(status).toBe(200);
    };
    await call({});
    await call({ 'x-claude-code-agent-id': 'explorer' });
    const query = new URLSearchParams({
      time_of_generation_min: new Date(Date.now() - 3_600_000).toISOString(),
      time_of_generation_max: new Date(Date.now() + 60_000).toISOString(),
    });
    const url = `${platform.baseUrl}/analytics/groups/session?${query.toString()}`;
    // Rollups are a few seconds behind.
    await eventually(
      async () => (await fetch(url, { headers: { authorization: `Bearer ${platform.adminKey}` } })).json(),
      (answer) => (answer as { total: number }).total > 0,
    );
    const { page, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Agent sessions' }).click();
    const session = page.getByRole('link', { name: 'session/1 of the test' });
    await session.waitFor();
    await page.getByRole('row', { name: /session\/1 of the test \d+ .* simulated/ }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await session.click();
    await page.getByRole('row', { name: /^main agent \d+ .* simulated/ }).waitFor();
    await page.getByRole('row', { name: /^explorer main agent \d+ / }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('link', { name: 'explorer' }).click();
    await page.getByRole('heading', { name: 'Requests' }).waitFor();
    await expect.poll(() => page.getByRole('row', { name: /sim-small/ }).count(), patience).toBeGreaterThan(0);
    expect(problems).toEqual([]);
    await page.context().close();
  });

  test('a narrow screen shows the same pages without scrolling sideways', async () => {
    const { page } = await openConsole(browser, platform, { width: 360, height: 740 });
    for (const path of [
      '',
      '/batches',
      '/batches/new',
      '/requests',
      '/agent-sessions',
      '/events',
      '/costs',
      '/playground',
    ]) {
      await page.goto(`${new URL(platform.baseUrl).origin}/console${path}`);
      await page.getByRole('heading', { level: 1 }).waitFor();
      const width = await page.evaluate<number>('document.documentElement.scrollWidth');
      expect({ path, width }).toEqual({ path, width: 360 });
    }
    await page.context().close();
  });

  test('signing out ends the session in this browser', async () => {
    const { page } = await openConsole(browser, platform);
    await page.getByRole('button', { name: 'Sign out', exact: true }).click();
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
