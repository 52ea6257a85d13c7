import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { accessibilityProblems, browserPath, launchBrowser, openConsole } from './browser.ts';

describe.skipIf(browserPath === undefined)('prompts and guardrails in Chromium', () => {
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

  test('a prompt is made, tried, changed, compared and published', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Prompts' }).click();
    await page.getByRole('button', { name: 'Create your first prompt' }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Create your first prompt' }).click();
    await page.getByRole('heading', { name: 'Support reply' }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);

    await page.getByLabel('customer', { exact: true }).fill('Ada');
    await page.getByLabel('question', { exact: true }).fill('Where is my order?');
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText(/^Done after/).waitFor();
    await page.getByRole('button', { name: 'Show the request' }).click();
    await page.getByText('You answer Ada kindly', { exact: false }).waitFor();

    await page.getByLabel('Text of message 1').fill('You answer {{customer}} in {{language}}.');
    await page.getByLabel('What changed').fill('other languages');
    await page.getByRole('button', { name: 'Save as a new version' }).click();
    await page.getByRole('row', { name: /other languages/ }).waitFor();
    await page.getByLabel('language', { exact: true }).waitFor();
    await page.getByText('version 1 is in use, 1 newer not published').waitFor();
    const diff = page.getByRole('region', { name: 'Differences' });
    await diff.getByText('+ You answer {{customer}} in {{language}}.').waitFor();
    await diff.getByText('- You answer {{customer}} kindly', { exact: false }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Publish version 2' }).click();
    await page.getByText('version 2 is in use').waitFor();

    await page.getByLabel('Parameters').fill('{"max_tokens": }');
    await page.getByRole('button', { name: 'Save as a new version' }).click();
    await page.getByText('The parameters are not valid JSON', { exact: false }).waitFor();
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a config is drawn and explained while it is written, saved, and compared with its earlier version', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Configs' }).click();
    await page.getByRole('button', { name: 'Create your first config' }).click();
    await page.getByLabel('Start from').selectOption('conditions');
    await page.getByRole('listitem').filter({ hasText: 'selects by conditions' }).first().waitFor();
    await page.getByRole('button', { name: 'Explain' }).click();
    const steps = page.getByLabel('Steps of the call');
    await steps.getByText('Condition 1 matches').waitFor();
    await page.getByRole('textbox', { name: 'Metadata' }).fill('{"tier": "silver"}');
    await page.getByRole('button', { name: 'Explain' }).click();
    await steps.getByText('No condition matches').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);

    await page.getByLabel('Name', { exact: true }).fill('By tier');
    const whole = await page.getByLabel('Document').innerText();
    await page.getByLabel('Document').fill(whole.slice(0, 20));
    await page.getByText('This is not valid JSON', { exact: false }).waitFor();
    expect(await page.getByRole('button', { name: 'Create', exact: true }).isDisabled()).toBe(true);
    await page.getByLabel('Document').fill('{}');
    await page.getByLabel('Document').press('Home');
    await page.getByLabel('Document').press('ArrowRight');
    await page.getByLabel('Document').pressSequentially('"virt');
    await page.getByRole('option', { name: /^"virtual_key"/ }).click();
    await page.getByLabel('Document').press('Control+Space');
    await page.getByRole('option', { name: '"simulator"' }).click();
    await page.getByRole('listitem').filter({ hasText: 'simulator' }).first().waitFor();
    await page.getByLabel('Document').fill('{"strategy": {"mode": "sideways"}, "targets": []}');
    await page.getByRole('button', { name: 'Create', exact: true }).click();
    await page.getByRole('alert').waitFor();
    await page.getByLabel('Document').fill(whole);
    await page.getByRole('button', { name: 'Create', exact: true }).click();
    await page.getByRole('heading', { name: 'Config by-tier' }).waitFor();
    await page.getByLabel('Document').fill(whole.replace('gold', 'platinum'));
    await page.getByRole('button', { name: 'Save as a new version' }).click();
    await page.getByRole('button', { name: 'Compare version 1' }).click();
    await page.getByRole('region', { name: 'Differences' }).getByText('platinum').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    // Chromium wraps what replaces a selection in an editable element in the style that was there. The policy blocks that, and
    // the editor takes the text alone.
    const expected = /status of 400|^Applying inline style violates/;
    const unexpected = problems.filter((each) => !expected.test(each));
    expect({ foreign, unexpected }).toEqual({ foreign: [], unexpected: [] });
    await page.context().close();
  });

  test('a guardrail reads as a sentence, is tried on two texts while it is written, and changed in versions', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Guardrails' }).click();
    await page.getByRole('button', { name: 'Create your first guardrail' }).click();
    const passing = page.getByRole('status', { name: /should pass$/ });
    const failing = page.getByRole('status', { name: /should be rejected$/ });
    const reads = (text: RegExp) => page.getByRole('status').filter({ hasText: text }).waitFor();

    // A pattern for secrets refuses calls that have one, and the other direction can be seen at once.
    await page.getByRole('button', { name: 'No API keys' }).click();
    await reads(/^Reject the call when the message matches this pattern: /);
    await passing.getByText('passes').waitFor();
    await failing.getByText('rejected').waitFor();
    await failing.getByText('because the message matches this pattern').waitFor();
    await page.getByLabel('Reject the call when').selectOption('the message does not match this pattern');
    await passing.locator('.badge.bad').getByText('rejected').waitFor();
    await failing.locator('.badge.bad').getByText('passes').waitFor();
    await failing.getByText('It should be rejected.').waitFor();

    await page.getByRole('button', { name: 'No card numbers' }).click();
    await failing.locator('.badge.good').getByText('rejected').waitFor();
    await page.getByLabel('Reject the call when').selectOption('the message contains one of these words');
    await page.getByRole('textbox', { name: /^Words/ }).fill('password\npassé');
    await page
      .getByRole('textbox', { name: 'A message that should be rejected' })
      .fill('Le mot de passe – passé – est …');
    await failing.getByText('because the message contains one of these words').waitFor();
    await page.getByRole('textbox', { name: 'Name' }).fill('No passwords');
    await reads(/^Reject the call when the message contains one of these words: password, passé\.$/);
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Create', exact: true }).click();
    await page.getByRole('row', { name: /no-passwords/ }).waitFor();
    const stored = await fetch(`${platform.baseUrl}/guardrails/no-passwords`, {
      headers: { authorization: `Bearer ${platform.adminKey}` },
    });
    expect(await stored.json()).toMatchObject({
      checks: [{ id: 'contains', parameters: { words: ['password', 'passé'], operator: 'none' } }],
      actions: { deny: true },
    });

    await page.getByRole('button', { name: 'Add a condition' }).click();
    await page.getByRole('spinbutton', { name: 'At most' }).fill('100');
    await page.getByRole('button', { name: 'Save as a new version' }).click();
    await page.getByRole('row', { name: /one of these words: password, passé, or the number of words.*2/ }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: /^Delete: / }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await page.getByText('No guardrails yet').waitFor();
    expect({ foreign, problems: problems.filter((each) => !each.includes('446')) }).toEqual({
      foreign: [],
      problems: [],
    });
    await page.context().close();
  });
});
