import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { accessibilityProblems, browserPath, launchBrowser, openConsole } from './browser.ts';

const patience = { timeout: 15_000 };

/** Creates a batch whose input file does not exist. */
async function failBatch({ baseUrl, adminKey }: TestPlatform): Promise<void> {
  const body = { input_file_id: 'file-x', endpoint: '/v1/chat/completions', completion_window: '24h' };
  const headers = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' };
  expect((await fetch(`${baseUrl}/batches`, { method: 'POST', headers, body: JSON.stringify(body) })).status).toBe(200);
}

describe.skipIf(browserPath === undefined)('administering in Chromium', () => {
  let platform: TestPlatform;
  let browser: Browser;
  beforeAll(async () => {
    platform = await startPlatform({ environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8' } });
    browser = await launchBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    await platform?.stop();
  });

  test('a virtual key is added and used, and an API key is made, rotated and revoked', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Keys and providers' }).click();
    await page.getByText('No open circuits').waitFor();
    await page.getByRole('button', { name: 'Add a virtual key' }).click();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByLabel('Name').fill('Team search');
    await page.getByLabel('Provider', { exact: false }).first().selectOption('openai');
    await page.getByLabel('Credential').fill('sk-secret-1234');
    await page.getByRole('button', { name: 'Add', exact: true }).click();
    await page.getByRole('link', { name: /^team-search/ }).waitFor();
    await page.getByText('…1234').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);

    await page.getByRole('link', { name: 'API keys' }).click();
    await page.getByRole('button', { name: 'Create a key' }).click();
    await page.getByLabel('Name').fill('nightly job');
    await page.getByLabel('Monthly budget (US dollars)').fill('25');
    await page.getByRole('button', { name: 'Create', exact: true }).click();
    const shown = await page.getByRole('region', { name: 'Key', exact: true }).locator('pre').textContent();
    const first = shown ?? '';
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Done' }).click();
    const models = async (key: string): Promise<number> =>
      (await fetch(`${platform.baseUrl}/models`, { headers: { authorization: `Bearer ${key}` } })).status;
    await expect.poll(() => models(first), patience).toBe(200);

    await page
      .getByRole('row', { name: /nightly job/ })
      .getByRole('button', { name: 'Rotate' })
      .click();
    await page.getByRole('button', { name: 'Create the new key' }).click();
    const second = (await page.getByRole('region', { name: 'New key' }).locator('pre').textContent()) ?? '';
    await page.getByRole('button', { name: 'Done' }).click();
    await expect.poll(() => models(second), patience).toBe(200);
    expect(await models(first)).toBe(200);

    await page
      .getByRole('row', { name: /nightly job/ })
      .getByRole('button', { name: /^Revoke/ })
      .click();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
    await expect.poll(() => page.getByRole('row', { name: /nightly job/ }).count(), patience).toBe(0);
    await expect.poll(() => models(second), patience).toBe(401);
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a key without scopes of keys sees its sessions and revokes another one', async () => {
    const answer = await fetch(`${platform.baseUrl}/api-keys`, {
      method: 'POST',
      headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ name: 'narrow', scopes: ['analytics.read'] }),
    });
    const { key } = (await answer.json()) as { key: string };
    const narrow = { baseUrl: platform.baseUrl, adminKey: key };
    const [{ page: lost }, { page, foreign, problems }] = [
      await openConsole(browser, narrow),
      await openConsole(browser, narrow),
    ];
    await page.getByRole('link', { name: 'Your sessions' }).click();
    await page.getByRole('row', { name: /this browser/ }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Revoke' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
    await expect.poll(() => page.getByRole('button', { name: 'Revoke' }).count(), patience).toBe(0);
    await lost.reload();
    await lost.getByLabel('Gateway key or token').waitFor();
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
    await lost.context().close();
  });

  test('a public model is created, called by its name, and deleted; the session that called it shows what it cost', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Public models' }).click();
    await page.getByText('No public models yet').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'New public model' }).click();
    await page.getByRole('textbox', { name: 'Name' }).fill('claude-team');
    await page.getByRole('heading', { name: 'Preview' }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Create', exact: true }).click();
    await page
      .getByRole('row', { name: /claude-team/ })
      .getByText('@simulator/sim-small')
      .waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);

    const call = (): Promise<Response> =>
      fetch(`${platform.baseUrl}/messages`, {
        method: 'POST',
        headers: {
          'x-api-key': platform.adminKey,
          'content-type': 'application/json',
          'x-claude-code-session-id': 'session-in-browser',
        },
        body: JSON.stringify({ model: 'claude-team', max_tokens: 9, messages: [{ role: 'user', content: 'Hi' }] }),
      });
    await expect.poll(async () => (await call()).status, patience).toBe(200);
    await page.getByRole('link', { name: 'Agent sessions' }).click();
    await expect
      .poll(async () => {
        await page.reload();
        await page.getByRole('heading', { name: 'Agent sessions' }).waitFor();
        await page.waitForLoadState('networkidle');
        return page.getByText('session-in-browser').count();
      }, patience)
      .toBeGreaterThan(0);
    expect(await accessibilityProblems(page)).toEqual([]);

    await page.getByRole('link', { name: 'Public models' }).click();
    await page
      .getByRole('row', { name: /claude-team/ })
      .getByRole('button', { name: 'Delete' })
      .click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await page.getByText('No public models yet').waitFor(patience);
    await expect.poll(async () => (await call()).status, patience).toBe(404);
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a webhook endpoint is added, gets a delivery that can be resent, and is disabled and deleted', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Webhooks' }).click();
    await page.getByText('No webhook endpoints yet').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    const received: string[] = [];
    const receiver = createServer((request, response) => {
      received.push(String(request.headers['webhook-id']));
      response.writeHead(received.length === 1 ? 400 : 204).end();
    });
    receiver.listen(0, '127.0.0.1');
    await once(receiver, 'listening');
    onTestFinished(() => void receiver.close());
    await page.getByRole('button', { name: 'Add an endpoint' }).click();
    await page.getByLabel('Name').fill('Results');
    await page
      .getByRole('textbox', { name: /^URL/ })
      .fill(`http://127.0.0.1:${(receiver.address() as AddressInfo).port}/hooks`);
    await page.getByLabel('batch.cancelled').uncheck();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Add', exact: true }).click();
    expect(await page.getByRole('region', { name: 'Signing secret' }).locator('pre').textContent()).toMatch(/^whsec_/);
    await page.getByRole('button', { name: 'Done' }).click();
    const endpoint = page.getByRole('region', { name: 'Webhook endpoints' }).getByRole('row', { name: /Results/ });
    await endpoint.getByText('batch.expired').waitFor();
    expect(await endpoint.getByText('batch.cancelled').count()).toBe(0);
    await page.getByText('No deliveries yet').waitFor();

    await failBatch(platform);
    const delivery = page.getByRole('region', { name: 'Deliveries', exact: true }).getByRole('row').nth(1);
    await delivery.getByText('unexpected_status').waitFor(patience);
    await delivery.getByText('pending').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await delivery.getByText('succeeded').waitFor(patience);
    await delivery.getByRole('button', { name: 'Resend' }).click();
    await expect.poll(() => received.length, patience).toBe(3);
    expect(new Set(received).size).toBe(1);
    await page.getByLabel('Status of the deliveries').selectOption('failed');
    await page.getByText('No failed deliveries').waitFor();

    await endpoint.getByRole('button', { name: 'Rotate' }).click();
    await page.getByRole('button', { name: 'Create the new secret' }).click();
    await page.getByRole('region', { name: 'Signing secret' }).waitFor();
    await page.getByRole('button', { name: 'Done' }).click();
    await endpoint.getByRole('button', { name: /^Disable/ }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Disable' }).click();
    await endpoint.getByRole('button', { name: 'Enable' }).click();
    await endpoint.getByText('enabled').waitFor();
    await endpoint.getByRole('button', { name: /^Delete/ }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await page.getByText('No webhook endpoints yet').waitFor();
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a person is invited by a link, becomes a member, and is removed', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'People and workspaces' }).click();
    await page.getByRole('button', { name: 'Invite a person' }).click();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByLabel('E-mail').fill('ada@example.com');
    await page.getByLabel(/^Role in /).selectOption('manager');
    await page.getByRole('button', { name: 'Create link' }).click();
    const link = (await page.getByRole('region', { name: 'Invite link' }).locator('pre').textContent()) ?? '';
    await page.getByRole('button', { name: 'Done' }).click();
    await page.getByRole('row', { name: /ada@example.com.*pending/ }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);

    // The person has no session.
    const elsewhere = await browser.newContext();
    const invited = await elsewhere.newPage();
    await invited.goto(link);
    await invited.getByRole('heading', { name: 'You are invited' }).waitFor();
    expect(await accessibilityProblems(invited)).toEqual([]);
    // The page takes the token out of the address and the history.
    expect(invited.url()).not.toContain('token');
    await invited.getByLabel('First name').fill('Ada');
    await invited.getByLabel('Last name').fill('Lovelace');
    await invited.getByRole('button', { name: 'Accept' }).click();
    await invited.getByRole('heading', { name: 'Welcome' }).waitFor();
    expect(await accessibilityProblems(invited)).toEqual([]);
    // A link works once. A page without a token asks for it.
    await invited.reload();
    await invited.getByLabel('Token, from the end of the link').fill(new URL(link).hash.slice('#token='.length));
    await invited.getByRole('button', { name: 'Accept' }).click();
    await invited.getByText('was already accepted').waitFor();
    await elsewhere.close();
    await page.reload();
    const members = page.getByRole('region', { name: 'Members', exact: true });
    await members.getByRole('row', { name: /Ada Lovelace/ }).waitFor();
    await page.getByLabel('Role of ada@example.com').selectOption('member');
    const roleOf = async (): Promise<string | undefined> => {
      const { rows } = await platform.database.pool.query<{ workspaces: Record<string, { role: string }> }>(
        `select data -> 'workspaces' as workspaces from resource where kind = 'user' and data ->> 'email' = 'ada@example.com'`,
      );
      return Object.values(rows[0]?.workspaces ?? {})[0]?.role;
    };
    await expect.poll(roleOf, patience).toBe('member');
    const people = page.getByRole('region', { name: 'People', exact: true });
    await people
      .getByRole('row', { name: /Ada/ })
      .getByRole('button', { name: /^Remove/ })
      .click();
    await page
      .getByRole('dialog')
      .getByLabel('Also revoke the service keys that they created in all workspaces')
      .check();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click();
    await expect.poll(() => people.getByRole('row', { name: /Ada/ }).count(), patience).toBe(0);

    await page.getByRole('button', { name: 'Create a workspace' }).click();
    await page.getByLabel('Name').fill('Research');
    await page.getByRole('button', { name: 'Create', exact: true }).click();
    await page.getByRole('row', { name: /Research/ }).waitFor();
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('the system page shows each process, and compares the tables with the event log', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'System' }).click();
    await page.getByText('All systems are running and up to date.').waitFor();
    expect(await page.getByRole('region', { name: 'Processes', exact: true }).getByRole('row').count()).toBe(3);
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Check now' }).click();
    await page.getByText('equal', { exact: true }).waitFor();
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });
});
