import { accessSync, constants } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium, type Browser, type Page } from 'playwright-core';
import type { TestPlatform } from '#test/platform.ts';

const places = [
  process.env['CHROMIUM_PATH'],
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
];

/** The browser of this machine; undefined without one. `.ci/run` installs Debian's. */
export const browserPath = places.find((place) => place !== undefined && isExecutable(place));

function isExecutable(place: string): boolean {
  try {
    accessSync(place, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

export const launchBrowser = (): Promise<Browser> =>
  chromium.launch({ executablePath: browserPath ?? '', args: ['--no-sandbox', '--disable-dev-shm-usage'] });

/** A page of the console that has signed in, and the requests that it sent to other origins, which must be none. */
export async function openConsole(
  browser: Browser,
  { baseUrl, adminKey }: Pick<TestPlatform, 'baseUrl' | 'adminKey'>,
  viewport = { width: 1280, height: 900 },
): Promise<{ page: Page; foreign: string[]; problems: string[] }> {
  const origin = new URL(baseUrl).origin;
  const context = await browser.newContext({ viewport });
  const page = await context.newPage();
  const foreign: string[] = [];
  const problems: string[] = [];
  page.on('request', (request) => {
    const { protocol, origin: to } = new URL(request.url());
    if (/^https?:$/.test(protocol) && to !== origin) foreign.push(request.url());
  });
  page.on('pageerror', (error) => problems.push(error.message));
  page.on('console', (message) => {
    // What the browser itself says of a request that was answered with 401, which asks for a key, is no defect.
    if (message.type() === 'error' && !message.text().includes('status of 401')) problems.push(message.text());
  });
  await page.goto(`${origin}/console`);
  await page.getByLabel('Gateway key or token').fill(adminKey);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  return { page, foreign, problems };
}

const axeFile = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

/** What axe finds wrong with the page, by WCAG 2.2 A and AA: the rule and the elements. */
export async function accessibilityProblems(page: Page): Promise<string[]> {
  // As the browser's own injection, because the policy of the page allows no script from elsewhere.
  const axe = await import('node:fs/promises').then(({ readFile }) => readFile(axeFile, 'utf8'));
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    type Axe = { run(options: object): Promise<{ violations: { id: string; nodes: { html: string }[] }[] }> };
    const { axe } = globalThis as unknown as { axe: Axe };
    const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
    const { violations } = await axe.run({ runOnly: { type: 'tag', values: tags } });
    return violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 200)}`));
  });
  return found;
}
