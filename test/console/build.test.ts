import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { buildConsole } from '#apps/console/build.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { accessibilityProblems, browserPath, launchBrowser, openConsole } from './browser.ts';

describe.skipIf(browserPath === undefined)('prompts and guardrails in Chromium', () => {
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

  test('a prompt is made, tried, changed, compared and published', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Prompts' }).click();
    await page.getByRole('button', { name: 'Make a first prompt' }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Make a first prompt' }).click();
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
    await page.getByText('version 1 is in use, 1 newer not yet').waitFor();
    const diff = page.getByRole('region', { name: 'What differs' });
    await diff.getByText('+ You answer {{customer}} in {{language}}.').waitFor();
    await diff.getByText('- You answer {{customer}} kindly', { exact: false }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Publish version 2' }).click();
    await page.getByText('version 2 is in use').waitFor();

    await page.getByLabel('Parameters').fill('{"max_tokens": }');
    await page.getByRole('button', { name: 'Save as a new version' }).click();
    await page.getByText('The parameters are not JSON', { exact: false }).waitFor();
    expect({ foreign, problems }).toEqual({ foreign: [], problems: [] });
    await page.context().close();
  });

  test('a config is drawn and explained while it is written, saved, and compared with its earlier version', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Configs' }).click();
    await page.getByRole('button', { name: 'Make a first one' }).click();
    await page.getByLabel('Begin with').selectOption('conditions');
    await page.getByRole('listitem').filter({ hasText: 'chooses by conditions' }).first().waitFor();
    await page.getByRole('button', { name: 'Say it' }).click();
    const steps = page.getByLabel('Steps of the call');
    await steps.getByText('Condition 1 holds').waitFor();
    await page.getByLabel('Its metadata').fill('{"tier": "silver"}');
    await page.getByRole('button', { name: 'Say it' }).click();
    await steps.getByText('No condition holds').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);

    await page.getByLabel('Name', { exact: true }).fill('By tier');
    const whole = await page.getByLabel('Document').innerText();
    await page.getByLabel('Document').fill(whole.slice(0, 20));
    await page.getByText('This is not JSON yet', { exact: false }).waitFor();
    expect(await page.getByRole('button', { name: 'Create' }).isDisabled()).toBe(true);
    await page.getByLabel('Document').fill('{}');
    await page.getByLabel('Document').press('Home');
    await page.getByLabel('Document').press('ArrowRight');
    await page.getByLabel('Document').pressSequentially('"virt');
    await page.getByRole('option', { name: /^"virtual_key"/ }).click();
    await page.getByLabel('Document').press('Control+Space');
    await page.getByRole('option', { name: '"simulator"' }).click();
    await page.getByRole('listitem').filter({ hasText: 'simulator' }).first().waitFor();
    await page.getByLabel('Document').fill('{"strategy": {"mode": "sideways"}, "targets": []}');
    await page.getByRole('button', { name: 'Create' }).click();
    await page.getByRole('alert').waitFor();
    await page.getByLabel('Document').fill(whole);
    await page.getByRole('button', { name: 'Create' }).click();
    await page.getByRole('heading', { name: 'Config by-tier' }).waitFor();
    await page.getByLabel('Document').fill(whole.replace('gold', 'platinum'));
    await page.getByRole('button', { name: 'Save as a new version' }).click();
    await page.getByRole('button', { name: 'Compare version 1' }).click();
    await page.getByRole('region', { name: 'What differs' }).getByText('platinum').waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    // Chromium wraps what replaces a selection in an editable element in the style that was there. The policy blocks that, and
    // the editor takes the text alone.
    const expected = /status of 400|^Applying inline style violates/;
    const unexpected = problems.filter((each) => !expected.test(each));
    expect({ foreign, unexpected }).toEqual({ foreign: [], unexpected: [] });
    await page.context().close();
  });

  test('a guardrail is tried before it is saved, and changed in versions', async () => {
    const { page, foreign, problems } = await openConsole(browser, platform);
    await page.getByRole('link', { name: 'Guardrails' }).click();
    await page.getByRole('button', { name: 'Make a first one' }).click();
    await page.getByLabel('Name').fill('No passwords');
    await page.getByLabel('A text').fill('Le mot de passe – password – est …');
    await page.getByRole('button', { name: 'Judge' }).click();
    await page.getByText('does not pass').waitFor();
    await page.getByLabel('A text').fill('Nothing secret');
    await page.getByRole('button', { name: 'Judge' }).click();
    await page.getByText('passes', { exact: true }).waitFor();
    expect(await accessibilityProblems(page)).toEqual([]);
    await page.getByRole('button', { name: 'Create' }).click();
    await page.getByRole('row', { name: /no-passwords/ }).waitFor();

    await page.getByRole('button', { name: 'Add a check' }).click();
    await page.getByLabel('maxWords').fill('100');
    await page.getByRole('button', { name: 'Save as a new version' }).click();
    await page.getByRole('row', { name: /the text has words; the number of words.*2/ }).waitFor();
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
