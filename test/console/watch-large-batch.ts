import { stat } from 'node:fs/promises';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import type { Page } from 'playwright-core';
import { buildConsole } from '#apps/console/build.ts';
import { writeInputFile } from '#test/bench/input-file.ts';
import { createCleanup, makeScratchDirectory, startPostgres, startStack, type Stack } from '#test/bench/stack.ts';
import { eventually } from '#test/eventually.ts';
import { freePort } from '#test/free-port.ts';
import { browserPath, launchBrowser, openConsole } from './browser.ts';
import { describePage, measurePage } from './measure-page.ts';

// npm run test:console -- [--lines 100000]: a large batch from the file to the last line in a real browser, against real
// processes, of which the API is killed twice meanwhile. Prints what the page saw, and what it cost the browser.

const { values } = parseArgs({ options: { lines: { type: 'string', default: '100000' } } });
const lines = Number(values.lines);
/** Of the page's heap after everything, collected: far more than it needs, and far less than the file. */
const heapBytesMax = 64 * 1024 * 1024;
const patience = { timeout: 600_000, timeoutMs: 600_000 };
const cleanup = createCleanup();
const violations: string[] = [];
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => void cleanup.run().finally(() => process.exit(130)));

const holds = (isSo: boolean, what: string): void => {
  console.log(`${isSo ? 'ok  ' : 'FAIL'} ${what}`);
  if (!isSo) violations.push(what);
};

try {
  if (browserPath === undefined) throw new Error('No Chromium was found. Name it in CHROMIUM_PATH.');
  await buildConsole();
  await watch();
} finally {
  await cleanup.run();
}
if (violations.length > 0) process.exitCode = 1;

async function watch(): Promise<void> {
  const directory = await makeScratchDirectory(cleanup);
  const stack = await startStack(directory, await startPostgres(directory, cleanup), cleanup);
  const port = String(await freePort());
  let { api, url } = await stack.startApi('watched-api', { PORT: port });
  let restarts = 0;
  const kill = async (): Promise<void> => {
    api.child.kill('SIGKILL');
    await api.stop();
  };
  const startAgain = async (): Promise<void> => {
    restarts += 1;
    ({ api, url } = await stack.startApi(`watched-api-${restarts}`, { PORT: port }));
  };
  const file = path.join(directory, 'input.jsonl');
  await writeInputFile(file, { lines, lineBytes: 400 });

  const browser = await launchBrowser();
  cleanup.add(() => browser.close());
  const { page, foreign, problems } = await openConsole(browser, { baseUrl: `${url}/v1`, adminKey: stack.adminKey });
  const measured = await measurePage(page);
  await page.goto(`${url}/console/batches/new`);
  await page.getByLabel('Input file').setInputFiles(file);
  const submit = page.getByRole('button', { name: `Submit ${lines.toLocaleString('en')} lines` });
  await submit.waitFor(patience);
  await measured.next('the file is checked in the browser');
  await page.getByLabel('Virtual key').selectOption('simulator');
  await submit.click();
  await page.waitForURL(/\/batches\/batch_/, patience);
  await measured.next('uploaded and created');
  const id = /batch_\w+/.exec(page.url())?.[0] ?? '';
  const shown = (): Promise<number> => doneIn(page);
  const settled = async (): Promise<number> => (await readTokenCounts(stack, id)).done;
  console.log(`${lines} lines, ${((await stat(file)).size / 1_048_576).toFixed(0)} MiB, ${id}`);

  await eventually(shown, (done) => done >= lines * 0.15, patience);
  await measured.next('the first lines are watched');

  const before = await shown();
  await kill();
  await page.getByText('Connection lost').waitFor(patience);
  await startAgain();
  await page.getByText('Live', { exact: true }).waitFor(patience);
  const after = await eventually(shown, (done) => done > before, patience);
  holds(
    after > before && after < lines,
    `after a kill -9 of the API the page went on by itself, from ${before} to ${after} lines`,
  );
  await measured.next('the API is killed, starts again, and the page goes on');

  // Without its stream of changes the page must be still, whatever happens on the server: it does not poll.
  await eventually(shown, (done) => done >= lines * 0.4, patience);
  await page.context().route('**/v1/session/changes', (route) => route.abort());
  await kill();
  await page.getByText('Connection lost').waitFor(patience);
  await startAgain();
  // A request that the kill broke off is made again, and that is all.
  await page.waitForLoadState('networkidle');
  const asked: string[] = [];
  const ask = (request: { url(): string }): void => {
    if (!request.url().endsWith('/session/changes')) asked.push(request.url());
  };
  page.on('request', ask);
  const still = await shown();
  const begin = await settled();
  const moved = await eventually(settled, (done) => done >= Math.min(lines, begin + lines * 0.1), patience);
  holds(
    moved > begin && moved < lines,
    `meanwhile ${moved - begin} lines were settled on the server, and the batch still ran`,
  );
  holds(
    asked.length === 0 && (await shown()) === still,
    `a page without its stream asks nothing (it asked ${asked.length} times)`,
  );
  page.off('request', ask);
  await measured.next('without the stream of changes');
  await page.context().unroute('**/v1/session/changes');
  await page.getByText('Live', { exact: true }).waitFor(patience);
  const caughtUp = await eventually(shown, (done) => done >= moved, patience);
  holds(caughtUp >= moved, `with its stream again it caught up, to ${caughtUp} lines`);

  await page.getByRole('heading', { name: 'Batch completed' }).waitFor(patience);
  await page.getByText(`${lines.toLocaleString('en')} of ${lines.toLocaleString('en')} lines, 0 failed`).waitFor();
  await measured.next('the rest, until it has ended');

  const counts = await readTokenCounts(stack, id);
  holds(
    counts.done === lines && counts.failed === 0,
    `the API counts ${counts.done} lines, ${counts.failed} failed, as the page does`,
  );
  const download = page.waitForEvent('download');
  await page.getByRole('link', { name: 'Download output' }).click();
  const ids = new Set<string>();
  for await (const line of createInterface(await (await download).createReadStream()))
    ids.add((JSON.parse(line) as { custom_id: string }).custom_id);
  holds(ids.size === lines, `the file that the page downloads has ${ids.size} different lines`);

  const result = await measured.end();
  holds(result.progress > 5, `progress moved ${result.progress} times`);
  holds(result.paces > 3, `lines/s had ${result.paces} values`);
  holds(result.timesLeft > 3, `the time that is left had ${result.timesLeft} values`);
  holds(result.heapBytes < heapBytesMax, `the page keeps ${(result.heapBytes / 1_048_576).toFixed(1)} MiB`);
  // The browser itself reports requests that a killed API did not answer, and those that were aborted.
  const defects = problems.filter((text) => !/Failed to load resource|net::ERR_/.test(text));
  holds(
    foreign.length + defects.length === 0,
    `no error in the page, no request to elsewhere ${[...foreign, ...defects].join(' ')}`,
  );
  console.log(`\n${describePage(result)}\n`);
}

/** How many lines the page shows as done. */
async function doneIn(page: Page): Promise<number> {
  const bar = page.getByRole('progressbar').first();
  return (await bar.count()) === 0 ? 0 : Number(await bar.getAttribute('aria-valuenow'));
}

/** As the API has it. From the other API process, which is never killed. */
async function readTokenCounts({ apiUrl, adminKey }: Stack, id: string): Promise<{ done: number; failed: number }> {
  const response = await fetch(`${apiUrl}/v1/batches/${id}`, { headers: { authorization: `Bearer ${adminKey}` } });
  const { request_counts: counts } = (await response.json()) as {
    request_counts: { completed: number; failed: number };
  };
  return { done: counts.completed + counts.failed, failed: counts.failed };
}
